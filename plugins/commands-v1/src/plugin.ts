import { join } from "node:path";
import {
  Capacities,
  Clock,
  definePlugin,
  openedAtStart,
  Peers,
  requestOf,
  Sandboxes,
  Spool,
  tenantOf,
  Tenants,
} from "@coppice/core";
import { Commands } from "@coppice/plugin-commands";
import { mountArchives } from "./archives/archive-routes.js";
import { Leftovers } from "./archives/leftovers.js";
import { mountCommands } from "./commands/command-routes.js";
import { commandsV1Config } from "./commands-v1-config.js";
import { CommandsV1Store } from "./store/commands-v1-store.js";
import { errorBody } from "./error-body.js";
import { Growth } from "./logs/growth.js";
import { logAnswer, mountLogs } from "./logs/log-routes.js";
import { OneShotRuns } from "./runs/one-shot-runs.js";
import { mountRuns } from "./runs/run-routes.js";
import { Keeper } from "./sandboxes/keeper.js";
import { NamedSandboxes } from "./sandboxes/named-sandboxes.js";
import { mountSandboxes } from "./sandboxes/sandbox-routes.js";
import { sessionSockets } from "./terminals/session-sockets.js";
import { Terminals } from "./terminals/terminals.js";
import { REASONS } from "./reasons.js";

/**
 * Durable commands over REST: a command outlives the client that started it, and its log is read by byte cursor, also
 * after its sandbox and its server have ended. The sandboxes and commands are those that all surfaces share.
 */
export const plugin = definePlugin({
  name: "commands-v1",
  reasons: REASONS,
  config: commandsV1Config,
  requires: { sandboxes: Sandboxes, commands: Commands, clock: Clock, peers: Peers, tenants: Tenants },
  setup(plugin, services) {
    const { config, log } = plugin;
    const file = openedAtStart(() => new CommandsV1Store(plugin.dataDir()));
    plugin.onStart(() => file.open());
    plugin.onStop(() => file.close());

    const store = () => file.get().sandboxes;
    const named = new NamedSandboxes({ store, ...services });
    const terminals = new Terminals({ config, ...services });
    plugin.onStop(() => terminals.close());
    const runs = new OneShotRuns({ store: () => file.get().runs, log, config, ...services });
    const spool = new Spool({
      directory: () => join(plugin.dataDir(), "spool"),
      maxBytes: config.maxSpool,
      tenants: services.tenants,
    });
    plugin.onStart(() => spool.clear());
    const leftovers = new Leftovers(services.sandboxes);
    const tasks = [() => terminals.check(), () => runs.check(), () => leftovers.endProcesses()];
    const keeper = new Keeper({ store, named, log, config, tasks, ...services });
    plugin.onStart(() => keeper.start());
    plugin.onStop(() => keeper.stop());

    const router = plugin.http("api", { errors: errorBody, below: config.basePath });
    const growth = new Growth();
    router.get(`${config.basePath}/auth/whoami`, (ctx) => {
      const { principal } = requestOf(ctx);
      ctx.body = {
        tenantID: tenantOf(ctx),
        principalName: principal?.name ?? null,
        scopes: [...(principal?.scopes ?? [])],
      };
    });
    const answerLog = logAnswer({ growth, config, ...services });
    const shared = { named, config, ...services };
    mountSandboxes(router, { capacities: new Capacities(), ...shared });
    mountCommands(router, shared);
    mountLogs(router, { answerLog, ...shared });
    mountRuns(router, { runs, answerLog, ...shared });
    mountArchives(router, { spool, ...shared });

    const sessions = `${config.basePath}/sandboxes/:id/sessions/:sid`;
    plugin.webSocket("api", [sessions], sessionSockets({ terminals, growth, ...shared }));
  },
});
