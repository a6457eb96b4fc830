import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { it } from "node:test";
import { OutputFan } from "./output-fan.js";

it("no listener of a subscriber stays on its signal, whichever side leaves first", async () => {
  const { signal } = new AbortController();
  const fan = new OutputFan(1000);
  const left = fan.subscribe(signal)[Symbol.asyncIterator]();
  const stays = fan.subscribe(signal)[Symbol.asyncIterator]();
  assert.equal(getEventListeners(signal, "abort").length, 2);
  await left.return?.();
  assert.equal(getEventListeners(signal, "abort").length, 1);
  fan.close();
  assert.deepEqual(await stays.next(), { done: true, value: undefined });
  assert.equal(getEventListeners(signal, "abort").length, 0);
});
