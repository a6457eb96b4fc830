import { Clock, definePlugin, Sandboxes } from "@coppice/core";
import { Commands } from "@coppice/plugin-commands";
import { mountExec } from "./exec-route.js";
import { legacyShimsConfig } from "./legacy-shims-config.js";
import { ShellSockets } from "./shell-sockets.js";

/**
 * For clients of this server's predecessor: `POST /sandboxes/:id/exec` and the WebSocket `/sandboxes/:id/ws`. Both use
 * the command table. May go when no installation enables it any more.
 */
export const plugin = definePlugin({
  name: "legacy-shims",
  config: legacyShimsConfig,
  requires: { sandboxes: Sandboxes, commands: Commands, clock: Clock },
  setup(plugin, { sandboxes, commands, clock }) {
    const { config } = plugin;

    mountExec(plugin.http("api"), { sandboxes, commands, config });

    const sockets = new ShellSockets({ sandboxes, commands, clock, config });
    plugin.onStop(() => sockets.close());
    plugin.upgrade("api", "/sandboxes/:id/ws", sockets.accept);
  },
});
