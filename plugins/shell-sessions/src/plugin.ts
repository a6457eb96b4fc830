import { join } from "node:path";
import { Clock, definePlugin, Sandboxes, serveSandboxPath, Spool, Targets, Tenants } from "@coppice/core";
import { Commands } from "@coppice/plugin-commands";
import { DirectoryWatches } from "@coppice/plugin-files";
import { CodeInterpreter } from "@coppice/plugin-jupyter";
import { interpreterRoutes } from "./code/interpreter-routes.js";
import { changeRoutes } from "./files/change-routes.js";
import { listRoutes } from "./files/list-routes.js";
import { readRoutes } from "./files/read-routes.js";
import { gitRoutes } from "./git/git-routes.js";
import { portRoutes } from "./ports/port-routes.js";
import { shellSessionsConfig, type ShellSessionsConfig } from "./shell-sessions-config.js";
import { ShellSessions } from "./shell/shell-sessions.js";
import { requestSockets } from "./socket/request-sockets.js";
import { watchRoutes } from "./watch/watch-routes.js";
import { commandRoutes } from "./wire/command-routes.js";
import { mountHttp } from "./wire/http-transport.js";
import { processRoutes } from "./wire/process-routes.js";
import { dispatcher, type ShellRoute } from "./wire/route.js";
import { sessionRoutes, utilityRoutes } from "./wire/session-routes.js";
import { ShellAccess } from "./wire/shell-access.js";
import { errorBody, unknownSandbox } from "./wire/shell-errors.js";

const SURFACE = "shell";

/**
 * The container API of Cloudflare's sandbox client: shells that keep their state, processes that outlive them, files,
 * ports and code. The sandboxes and commands are those that all surfaces share.
 */
export const plugin = definePlugin({
  name: "shell-sessions",
  config: shellSessionsConfig,
  requires: { sandboxes: Sandboxes, commands: Commands, clock: Clock, targets: Targets, tenants: Tenants },
  uses: { interpreter: CodeInterpreter, watches: DirectoryWatches },
  setup(plugin, { sandboxes, targets, ...services }) {
    const { config } = plugin;
    const spool = new Spool({
      directory: () => join(plugin.dataDir(), "spool"),
      maxBytes: config.maxSpool,
      tenants: services.tenants,
    });
    plugin.onStart(() => spool.clear());
    const shells = new ShellSessions({ config, spool, ...services });
    plugin.onStop(() => shells.close());

    const access = new ShellAccess(config);
    const guard = serveSandboxPath({
      targets,
      sandboxes,
      surface: SURFACE,
      port: config.port,
      presented: access.presented,
      refusal: unknownSandbox,
    });
    plugin.guard(SURFACE, guard);

    const dispatch = dispatcher({ shells, config, spool, ...services });
    const routes = shellRoutes({ config, ...services });
    const router = plugin.http(SURFACE, { errors: errorBody, below: "" });
    const mounted = { routes, dispatch, access, config, ...services };
    mountHttp(router, mounted);
    const paths = access.prefixes.flatMap((prefix) => [`${prefix}/ws`, `${prefix}/api/ws`]);
    plugin.webSocket(SURFACE, paths, requestSockets(mounted));
  },
});

interface ShellRoutesOptions {
  readonly config: ShellSessionsConfig;
  readonly clock: Clock;
  readonly commands: Commands;
  readonly watches: DirectoryWatches | undefined;
  readonly interpreter: CodeInterpreter | undefined;
}

/** Every route of the interface, for all transports. */
function shellRoutes(options: ShellRoutesOptions): readonly ShellRoute[] {
  const { config } = options;
  return [
    ...utilityRoutes(config),
    ...commandRoutes(config),
    ...processRoutes(config),
    ...sessionRoutes(config),
    ...readRoutes(config),
    ...changeRoutes,
    ...listRoutes(config),
    ...portRoutes(options),
    ...interpreterRoutes(options),
    ...gitRoutes(options),
    ...watchRoutes(options),
  ];
}
