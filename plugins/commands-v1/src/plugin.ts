import { Clock, definePlugin, Sandboxes } from "@coppice/core";
import { Commands } from "@coppice/plugin-commands";
import { mountCommands } from "./commands/command-routes.js";
import { commandsV1Config } from "./commands-v1-config.js";
import { errorBody } from "./error-body.js";
import { mountLogs } from "./logs/log-routes.js";

/**
 * Durable commands over REST: a command outlives the client that started it, and its log is read by byte cursor, also
 * after its sandbox and its server have ended. The commands are those of the table that all surfaces share.
 */
export const plugin = definePlugin({
  name: "commands-v1",
  config: commandsV1Config,
  requires: { sandboxes: Sandboxes, commands: Commands, clock: Clock },
  setup(plugin, services) {
    const { config } = plugin;
    const router = plugin.http("api", { errors: errorBody });
    mountCommands(router, { ...services, config });
    mountLogs(router, { ...services, config });
  },
});
