import { Clock, definePlugin } from "@coppice/core";
import { CommandMetrics } from "./command-metrics.js";
import { CommandsConfig } from "./commands-config.js";
import { Commands } from "./commands.js";
import { serveNdjson } from "./ndjson.js";
import { serveProcessRpc } from "./process-rpc.js";
import { ProcessTable } from "./process-table.js";

/** Runs commands in sandboxes: one table of them, served as `process.Process` and as NDJSON. */
export const plugin = definePlugin({
  name: "commands",
  config: CommandsConfig,
  requires: { clock: Clock },
  provides: [Commands],

  setup(plugin, { clock }) {
    const { config, log } = plugin;
    const commands = new ProcessTable({
      config,
      metrics: new CommandMetrics(plugin.metrics),
      clock,
      log,
    });
    plugin.bindValue(Commands, commands);
    plugin.onStop(() => commands.close());

    serveProcessRpc(plugin.rpc("envd"), { commands, clock, keepaliveMs: config.keepaliveInterval });
    serveNdjson(plugin.http("envd"), { commands, config });
  },
});
