import { definePlugin, Sandboxes, Tenants } from "@coppice/core";
import { Commands } from "@coppice/plugin-commands";
import { mountExec } from "./exec-route.js";
import { legacyShimsConfig } from "./legacy-shims-config.js";
import { shellSockets } from "./shell-sockets.js";

/**
 * For clients of this server's predecessor: `POST /sandboxes/:id/exec` and the WebSocket `/sandboxes/:id/ws`. Both use
 * the command table. May go when no installation enables it any more.
 */
export const plugin = definePlugin({
  name: "legacy-shims",
  config: legacyShimsConfig,
  requires: { sandboxes: Sandboxes, commands: Commands, tenants: Tenants },
  setup(plugin, { sandboxes, commands, tenants }) {
    const { config } = plugin;

    mountExec(plugin.http("api"), { sandboxes, commands, tenants, config });

    plugin.webSocket("api", ["/sandboxes/:id/ws"], shellSockets({ sandboxes, commands, config }));
  },
});
