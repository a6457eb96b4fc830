import { Clock, definePlugin, sandboxEnvironment, Sandboxes, Targets, targetOf } from "@coppice/core";
import { codeGuard } from "./code-guard.js";
import { debugGuard, debugTarget } from "./debug-sandbox.js";
import { envdCompatConfig } from "./envd-compat-config.js";
import { envdGuard } from "./envd-guard.js";
import { metricsBody } from "./metrics-body.js";
import { RESERVED_PATHS, reservedPathRefusal } from "./reserved-paths.js";
import { signatureTarget } from "./signature-target.js";

/** The rest of E2B's envd: tokens, small routes, and the ways to reach a sandbox. */
export const plugin = definePlugin({
  name: "envd-compat",
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

    for (const path of RESERVED_PATHS) {
      router.all(path, () => {
        throw reservedPathRefusal(path);
      });
    }

    targets.add(signatureTarget(sandboxes));
    if (debugSandbox) targets.add(debugTarget(sandboxes, debugTemplate));
  },
});
