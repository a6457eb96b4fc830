import { Capacities, Clock, definePlugin, openedAtStart, Sandboxes } from "@coppice/core";
import { Commands } from "@coppice/plugin-commands";
import { mountCommands } from "./commands/command-routes.js";
import { commandsV1Config } from "./commands-v1-config.js";
import { errorBody } from "./error-body.js";
import { Growth } from "./logs/growth.js";
import { mountLogs } from "./logs/log-routes.js";
import { Keeper } from "./sandboxes/keeper.js";
import { NamedSandboxes } from "./sandboxes/named-sandboxes.js";
import { mountSandboxes } from "./sandboxes/sandbox-routes.js";
import { SandboxStore } from "./sandboxes/sandbox-store.js";
import { sessionUpgrade } from "./terminals/session-upgrade.js";
import { Terminals } from "./terminals/terminals.js";

/**
 * Durable commands over REST: a command outlives the client that started it, and its log is read by byte cursor, also
 * after its sandbox and its server have ended. The sandboxes and commands are those that all surfaces share.
 */
export const plugin = definePlugin({
  name: "commands-v1",
  config: commandsV1Config,
  requires: { sandboxes: Sandboxes, commands: Commands, clock: Clock },
  setup(plugin, services) {
    const { config, log } = plugin;
    const file = openedAtStart(() => new SandboxStore(plugin.dataDir()));
    plugin.onStart(() => file.open());
    plugin.onStop(() => file.close());

    const named = new NamedSandboxes({ store: file.get, ...services });
    const terminals = new Terminals({ config, ...services });
    plugin.onStop(() => terminals.close());
    const keeper = new Keeper({
      store: file.get,
      named,
      log,
      config,
      onCheck: () => terminals.check(),
      ...services,
    });
    plugin.onStart(() => keeper.start());
    plugin.onStop(() => keeper.stop());

    const router = plugin.http("api", { errors: errorBody });
    const shared = { named, config, ...services };
    mountSandboxes(router, { capacities: new Capacities(), ...shared });
    mountCommands(router, shared);
    const growth = new Growth();
    mountLogs(router, { growth, ...shared });

    const sessions = sessionUpgrade({ terminals, growth, ...shared });
    plugin.onStop(() => sessions.close());
    plugin.upgrade("api", `${config.basePath}/sandboxes/:id/sessions/:sid`, sessions.accept);
  },
});
