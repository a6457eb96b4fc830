import assert from "node:assert/strict";
import { it } from "node:test";
import { Health } from "./health.js";

it("a check that does not answer fails by itself after its time, without delaying others", async () => {
  const health = new Health();
  health.add("quick", async () => undefined);
  health.add("silent", () => new Promise(() => {}));
  const { promise: late, resolve } = Promise.withResolvers<string>();
  // Also keeps this process: the time-out of a check does not.
  const watchdog = setTimeout(resolve, 20_000, "it waits for the check");
  const readiness = await Promise.race([health.readiness(), late]);
  clearTimeout(watchdog);
  assert.deepEqual(readiness, {
    ready: false,
    checks: { quick: "ok", silent: "no answer within 2000 ms" },
    details: {},
  });
});

it("a server that is stopping is not ready, however well it is", async () => {
  const health = new Health();
  health.add("disk", async () => undefined);
  assert.equal((await health.readiness()).ready, true);
  health.stopping();
  assert.deepEqual(await health.readiness(), {
    ready: false,
    checks: { server: "stopping", disk: "ok" },
    details: {},
  });
});
