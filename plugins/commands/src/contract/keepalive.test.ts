import assert from "node:assert/strict";
import { it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { systemClock } from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { withKeepalives } from "./keepalive.js";

it("keepalives fill silence only, and neither delay nor reorder what comes", async () => {
  const clock = fakeClock();
  async function* source() {
    yield "a";
    await new Promise<void>((resolve) => clock.after(70, resolve));
    yield "b";
    yield "c";
  }
  const seen: (string | undefined)[] = [];
  const reading = (async () => {
    for await (const value of withKeepalives(source(), { intervalMs: 30, clock })) seen.push(value);
  })();
  await clock.advance(70);
  await reading;
  assert.deepEqual(seen, ["a", undefined, undefined, "b", "c"]);
});

it("a failure of the source comes through, and leaving early releases the source", async () => {
  async function* failing(): AsyncGenerator<string> {
    yield "a";
    await sleep(5);
    throw new Error("broken");
  }
  await assert.rejects(async () => {
    for await (const _ of withKeepalives(failing(), { intervalMs: 1000, clock: systemClock }));
  }, /broken/);

  let isReleased = false;
  async function* endless() {
    try {
      for (;;) yield "x";
    } finally {
      isReleased = true;
    }
  }
  for await (const _ of withKeepalives(endless(), { intervalMs: 1000, clock: systemClock })) break;
  assert.equal(isReleased, true);
});
