import assert from "node:assert/strict";
import { it } from "node:test";
import { Cleanup } from "./cleanup.js";
import { systemClock } from "./clock.js";

it("undo steps run last in, first out, one at a time", async () => {
  const cleanup = new Cleanup();
  const trace: string[] = [];
  for (const name of ["one", "two", "three"]) {
    cleanup.push(name, async () => {
      trace.push(`${name} begins`);
      await new Promise(setImmediate);
      trace.push(`${name} ends`);
    });
  }
  assert.deepEqual(await cleanup.run(systemClock, 1000), []);
  assert.deepEqual(trace, ["three begins", "three ends", "two begins", "two ends", "one begins", "one ends"]);
});

it("a step that throws or hangs is named, and the rest still run", async () => {
  const cleanup = new Cleanup();
  let reached = false;
  cleanup.push("first", () => {
    reached = true;
  });
  cleanup.push("hangs", () => new Promise(() => undefined));
  cleanup.push("throws", () => {
    throw new Error("broken");
  });
  const failures = await cleanup.run(systemClock, 20);
  assert.deepEqual(
    failures.map(({ owner, message }) => [owner, message]),
    [
      ["throws", "broken"],
      ["hangs", "did not end within 20 ms"],
    ],
  );
  assert.ok(reached);
});

it("a second run waits for the first and runs nothing again", async () => {
  const cleanup = new Cleanup();
  let runs = 0;
  cleanup.push("once", () => {
    runs += 1;
  });
  await Promise.all([cleanup.run(systemClock, 100), cleanup.run(systemClock, 100)]);
  assert.equal(runs, 1);
});
