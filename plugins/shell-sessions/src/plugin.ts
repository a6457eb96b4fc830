import { Clock, definePlugin, Sandboxes, Targets } from "@coppice/core";
import { Commands } from "@coppice/plugin-commands";
import { shellSessionsConfig } from "./shell-sessions-config.js";

/**
 * The container API of Cloudflare's sandbox client: shells that keep their state, processes that outlive them, files,
 * ports and code. The sandboxes and commands are those that all surfaces share.
 */
export const plugin = definePlugin({
  name: "shell-sessions",
  config: shellSessionsConfig,
  requires: { sandboxes: Sandboxes, commands: Commands, clock: Clock, targets: Targets },
  setup() {
    // Routes follow.
  },
});
