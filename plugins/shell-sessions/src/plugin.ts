import { join } from "node:path";
import { Clock, definePlugin, Sandboxes, serveSandboxPath, Spool, Targets, Tenants } from "@coppice/core";
import { Commands } from "@coppice/plugin-commands";
import { DirectoryWatches } from "@coppice/plugin-files";
import { CodeInterpreter } from "@coppice/plugin-jupyter";
import { ShellSessions } from "./shell/shell-sessions.js";
import { shellSessionsConfig } from "./shell-sessions-config.js";
import { dispatcher } from "./wire/dispatch.js";
import { mountHttp } from "./wire/http-transport.js";
import { shellRoutes } from "./shell-routes.js";
import { ShellAccess } from "./wire/shell-access.js";
import { errorBody, unknownSandbox } from "./wire/shell-errors.js";
import { shellSockets } from "./socket/shell-sockets.js";

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
    plugin.webSocket(SURFACE, paths, shellSockets(mounted));
  },
});
