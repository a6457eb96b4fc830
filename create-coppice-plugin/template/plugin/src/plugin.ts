import { Clock, declareReasons, definePlugin, SandboxError, Sandboxes, sandboxesOf } from "@coppice/core";
import { Counter } from "prom-client";
import { z } from "zod";

const REASONS = declareReasons({
  failed_precondition: { "{{plugin}}.ends_soon": "The sandbox ends too soon. | Give it a longer time-out." },
});

/** Tells how long a sandbox still lives, and refuses one that ends too soon. */
export default definePlugin({
  name: "{{plugin}}",
  reasons: REASONS,
  config: z.strictObject({
    leastSeconds: z.int().min(0).default(60).describe("A sandbox that ends sooner is refused."),
  }),
  requires: { sandboxes: Sandboxes, clock: Clock },
  setup(plugin, { sandboxes, clock }) {
    const refusals = new Counter({
      name: "coppice_{{metric}}_refusals_total",
      help: "Sandboxes that ended too soon.",
      registers: [plugin.metrics],
    });

    plugin.http("api").get("/{{plugin}}/:sandboxID", (ctx) => {
      // Those of the request's tenant alone.
      const { record } = sandboxesOf(ctx, sandboxes).get(ctx.params["sandboxID"] ?? "");
      const secondsLeft = record.endsAtMs === undefined ? null : (record.endsAtMs - clock.now()) / 1000;
      if (secondsLeft !== null && secondsLeft < plugin.config.leastSeconds) {
        refusals.inc();
        throw new SandboxError(REASONS["{{plugin}}.ends_soon"], `it ends in ${Math.ceil(secondsLeft)} s`);
      }
      ctx.body = { id: record.id, secondsLeft };
    });
  },
});
