import {
  Clock,
  definePlugin,
  MEBIBYTE,
  sandboxEnvironment,
  Sandboxes,
  targetOf,
  Targets,
} from "@coppice/core";
import { debugGuard, debugTarget } from "./debug-sandbox.js";
import { codeGuard, envdGuard } from "./access-token-guards.js";
import { signatureTarget } from "./file-signature.js";
import { z } from "zod";
import { cpuSharePercent, type Stats } from "@coppice/core/backend";
import { REASONS } from "./reasons.js";

const envdCompatConfig = z.strictObject({
  debugSandbox: z
    .boolean()
    .default(false)
    .describe("Serve one shared, open sandbox on the loopback listeners envd and code, for E2B_DEBUG=true."),
  debugTemplate: z.string().default("code-interpreter-v1").describe("Template of the debug sandbox."),
});

/** The rest of E2B's envd: tokens, small routes, and the ways to reach a sandbox. */
export const plugin = definePlugin({
  name: "envd-compat",
  reasons: REASONS,
  config: envdCompatConfig,
  requires: { sandboxes: Sandboxes, targets: Targets, clock: Clock },
  setup(context, { sandboxes, targets, clock }) {
    const { debugSandbox, debugTemplate } = context.config;
    const router = context.http("envd", { errors: "e2b" });

    context.guard("envd", envdGuard(clock));
    context.guard("code", codeGuard);
    targets.guard(debugGuard);

    // Requests to a dead sandbox are answered before routing.
    router.get("/health", (ctx) => {
      ctx.status = 204;
    });

    router.get("/envs", (ctx) => {
      ctx.set("Cache-Control", "no-store");
      ctx.body = sandboxEnvironment(targetOf(ctx));
    });

    router.get("/metrics", async (ctx) => {
      ctx.set("Cache-Control", "no-store");
      ctx.body = metricsBody(await targetOf(ctx).runtime.stats(), clock.now());
    });

    targets.add(signatureTarget(sandboxes));
    if (debugSandbox) targets.add(debugTarget(sandboxes, debugTemplate));
  },
});

/** Resource usage of a sandbox in envd's form. */
function metricsBody(stats: Stats, nowMs: number) {
  return {
    ts: Math.floor(nowMs / 1000),
    cpu_count: stats.cpuCount,
    cpu_used_pct: cpuSharePercent(stats),
    mem_total: stats.memoryTotalBytes,
    mem_used: stats.memoryUsedBytes,
    mem_cache: stats.memoryCacheBytes,
    mem_total_mib: Math.floor(stats.memoryTotalBytes / MEBIBYTE),
    mem_used_mib: Math.floor(stats.memoryUsedBytes / MEBIBYTE),
    disk_used: stats.diskUsedBytes,
    disk_total: stats.diskTotalBytes,
  };
}
