import assert from "node:assert/strict";
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { closeInTurn, takeTurn } from "./direct-file.js";

it("reads that are held up take neither another sandbox's turn nor all of the server's threads", async () => {
  const [hostile, accomplice, other] = [{}, {}, {}];
  const stuck = await takeTurn(hostile);
  assert.ok(stuck);
  const beganMs = performance.now();
  assert.equal(await takeTurn(hostile), undefined);
  assert.ok(performance.now() - beganMs < 1_000);
  // It is known to be held up now.
  const refused = takeTurn(hostile);
  const soon = await Promise.race([refused, sleep(50, "late")]);
  assert.equal(soon, undefined);
  const others = await takeTurn(other);
  assert.ok(others);
  const waiting = takeTurn(other);
  others();
  const next = await waiting;
  assert.ok(next);
  next();
  const second = await takeTurn(accomplice);
  assert.ok(second);
  // Goes on in another way.
  assert.equal(await takeTurn(other), undefined);
  stuck();
  second();
  const free = await takeTurn(other);
  assert.ok(free);
  free();
});

it("descriptors of agents that have ended are closed one after another", async (context) => {
  const under: (() => void)[] = [];
  context.mock.method(fs, "close", (_: number, done: () => void) => void under.push(done));
  syncBuiltinESMExports();
  const closing = [1_000_001, 1_000_002].map((descriptor) => closeInTurn(descriptor));
  await sleep(10);
  assert.equal(under.length, 1);
  under[0]?.();
  await closing[0];
  await sleep(10);
  assert.equal(under.length, 2);
  under[1]?.();
  await closing[1];
  context.mock.restoreAll();
  syncBuiltinESMExports();
});
