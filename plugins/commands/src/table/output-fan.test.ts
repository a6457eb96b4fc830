import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { it } from "node:test";
import type { OutputPiece } from "../contract/commands.js";
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

it("a reader takes the pieces that are there already, up to a size, and each byte comes once", async () => {
  const fan = new OutputFan(1000);
  const reader = fan.subscribe(new AbortController().signal);
  const pieces = ["a", "bb", "ccc", "dddd"].map((text) => piece(text));
  for (const each of pieces) await fan.publish(each);
  assert.deepEqual(reader.taken(6), pieces.slice(0, 3));
  assert.deepEqual(reader.taken(3), []);
  fan.close();
  const rest = [];
  for await (const each of reader) rest.push(each);
  assert.deepEqual(rest, pieces.slice(3));
});

it("the data of a piece is released once, when every reader has released it or left", async () => {
  const fan = new OutputFan(1000);
  const { signal } = new AbortController();
  let released = 0;
  const releasing = (): OutputPiece => ({ ...piece("a"), release: () => (released += 1) });
  await fan.publish(releasing());
  assert.equal(released, 1, "without a reader");

  const one = fan.subscribe(signal);
  const other = fan.subscribe(signal)[Symbol.asyncIterator]();
  await fan.publish(releasing());
  one.taken(1)[0]?.release?.();
  assert.equal(released, 1, "while another reader has it");
  await other.return?.();
  assert.equal(released, 2);
  await fan.publish(releasing());
  one.taken(1)[0]?.release?.();
  assert.equal(released, 3, "by the only reader");
});

function piece(text: string): OutputPiece {
  return { stream: "stdout", data: Buffer.from(text), offset: 0 };
}
