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
  type ErrorBody,
} from "@coppice/core";
import { Commands } from "@coppice/plugin-commands";
import { mountArchives } from "./archives/archive-routes.js";
import { OrphanCleanup } from "./archives/tar-process.js";
import { mountCommands } from "./commands/command-routes.js";
import { commandsV1Config } from "./commands-v1-config.js";
import { CommandsV1Store } from "./store/commands-v1-store.js";
import { LogFollowers } from "./logs/log-followers.js";
import { logAnswer, mountLogs } from "./logs/log-routes.js";
import { OneShotRuns } from "./runs/one-shot-runs.js";
import { mountRuns } from "./runs/run-routes.js";
import { Sweeper } from "./sandboxes/sweeper.js";
import { NamedSandboxes } from "./sandboxes/named-sandboxes.js";
import { mountSandboxes } from "./sandboxes/sandbox-routes.js";
import { sessionSockets } from "./terminals/serve-terminal.js";
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
    const orphans = new OrphanCleanup(services.sandboxes);
    const tasks = [() => terminals.check(), () => runs.check(), () => orphans.endProcesses()];
    const sweeper = new Sweeper({ store, named, log, config, tasks, ...services });
    plugin.onStart(() => sweeper.start());
    plugin.onStop(() => sweeper.stop());

    const router = plugin.http("api", { errors: errorBody, below: config.basePath });
    const followers = new LogFollowers();
    router.get(`${config.basePath}/auth/whoami`, (ctx) => {
      const { principal } = requestOf(ctx);
      ctx.body = {
        tenantID: tenantOf(ctx),
        principalName: principal?.name ?? null,
        scopes: [...(principal?.scopes ?? [])],
      };
    });
    const answerLog = logAnswer({ followers, config, ...services });
    const shared = { named, config, ...services };
    mountSandboxes(router, { capacities: new Capacities(), ...shared });
    mountCommands(router, shared);
    mountLogs(router, { answerLog, ...shared });
    mountRuns(router, { runs, answerLog, ...shared });
    mountArchives(router, { spool, ...shared });

    const sessions = `${config.basePath}/sandboxes/:id/sessions/:sid`;
    plugin.webSocket("api", [sessions], sessionSockets({ terminals, followers, ...shared }));
  },
});

/** The error body of the contract: `code` is a word, `forbidden` for a missing scope. */
const errorBody: ErrorBody = ({ status, reason, message }, { id }) => ({
  code: status === 403 ? "forbidden" : reason,
  message,
  request_id: id,
});
