import { join } from "node:path";
import { Clock, Peers, Sandboxes, definePlugin } from "@coppice/core";
import { commandMetrics } from "./table/command-metrics.js";
import { commandsConfig } from "./commands-config.js";
import { Commands } from "./contract/commands.js";
import { mountLogs } from "./http/logs-routes.js";
import { mountNdjson } from "./http/ndjson.js";
import { diskFiles } from "./output-log/log-files.js";
import { logMetrics } from "./output-log/log-metrics.js";
import { OutputLogs } from "./output-log/output-logs.js";
import { mountProcessRpc } from "./rpc/process-rpc.js";
import { ProcessTable } from "./table/process-table.js";
import { mountSandboxLogs } from "./http/sandbox-logs-routes.js";
import { REASONS } from "./reasons.js";

/** Runs commands in sandboxes: one table, served as `process.Process` and as NDJSON. */
export const plugin = definePlugin({
  name: "commands",
  reasons: REASONS,
  config: commandsConfig,
  requires: { clock: Clock, peers: Peers, sandboxes: Sandboxes },
  provides: [Commands],

  setup(plugin, { clock, peers, sandboxes }) {
    const { config, log } = plugin;
    plugin.onReload([
      "defaultTimeout",
      "endedRetention",
      "maxArgumentSize",
      "maxArgumentsSize",
      "maxCommandsPerSandbox",
      "maxEndedCommands",
      "maxTagSize",
    ]);
    const logs: OutputLogs = new OutputLogs({
      config: config.log,
      files: diskFiles,
      clock,
      log,
      metrics: logMetrics(plugin.metrics, () => logs.bytes),
    });
    plugin.onStart(() => logs.open(() => join(plugin.dataDir(), "logs")));
    plugin.onStop(() => logs.close());
    plugin.health("commands-log", async () => logs.check());

    const metrics = commandMetrics(plugin.metrics);
    const commands = new ProcessTable({ config, metrics, clock, log, logs });
    plugin.bindValue(Commands, commands);
    plugin.onStop(() => commands.close());
    plugin.onStart(async () => {
      for (const sandbox of sandboxes.list()) await commands.adopt(sandbox);
    });

    mountProcessRpc(plugin.rpc("envd"), { commands, clock });
    mountNdjson(plugin.http("envd"), { commands, config });
    mountLogs(plugin.http("envd"), { commands, config: config.log });
    mountSandboxLogs(plugin.http("api", { errors: "e2b" }), {
      commands,
      peers,
      sandboxes,
      longestLine: config.maxLineSize,
      largestAnswer: config.log.maxPage,
    });
  },
});
