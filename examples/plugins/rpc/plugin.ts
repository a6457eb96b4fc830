// A plugin with a Connect RPC about the sandbox that a request is addressed to.
import { definePlugin, targetOf } from "@coppice/core";
import { UsageService } from "./generated/usage_pb.js";

export default definePlugin({
  name: "usage-rpc",
  setup(plugin) {
    // On `envd` the sandbox's own token has been checked before this runs.
    plugin.rpc("envd").service(UsageService, {
      async get(_, context) {
        const { cpuUsedPercent, memoryUsedBytes } = await targetOf(context).stats();
        return { cpuPercent: cpuUsedPercent, memoryBytes: BigInt(memoryUsedBytes) };
      },
    });
  },
});
