import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { it } from "node:test";
import { MemoryRoom } from "@coppice/core";
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

it("where the room for what is not taken is full, the clients of who has the most of it are cut off, and its command goes on", async () => {
  // Room for two stalled commands of three.
  const room = new MemoryRoom(5 * 2 ** 20);
  const large = piece("x".repeat(1000));
  const stalled = ["evil", "evil", "good"].map((tenant, number) => {
    const fan: OutputFan = new OutputFan(
      1000,
      room.open({ tenant, sandbox: String(number), giveUp: () => fan.cutSlow() }),
    );
    const reader = fan.subscribe(new AbortController().signal)[Symbol.asyncIterator]();
    return { fan, reader, published: fan.publish(large) };
  });
  const [cut, ...others] = stalled;
  // The first of two equals.
  await cut?.published;
  await assert.rejects(async () => cut?.reader.next(), { reason: "server_busy" });
  assert.deepEqual(await cut?.reader.next(), { done: true, value: undefined });
  await cut?.fan.publish(large);
  for (const { published, reader } of others) {
    assert.deepEqual(await reader.next(), { done: false, value: large });
    await published;
  }
});

it("what waits for a client counts before its command has to wait, and after the end of it", async () => {
  const room = new MemoryRoom(500_000);
  const held = ["evil", "good", "evil"].map((tenant) => {
    const fan: OutputFan = new OutputFan(
      1_000_000,
      room.open({ tenant, sandbox: tenant, giveUp: () => fan.cutSlow() }),
    );
    return { fan, reader: fan.subscribe(new AbortController().signal)[Symbol.asyncIterator]() };
  });
  const large = piece("x".repeat(200_000));
  const [ended, good, running] = held;
  await ended?.fan.publish(large);
  ended?.fan.close();
  await good?.fan.publish(large);
  await running?.fan.publish(large);
  await assert.rejects(async () => ended?.reader.next(), { reason: "server_busy" });
  for (const { reader } of [good, running].filter((each) => each !== undefined))
    assert.deepEqual(await reader.next(), { done: false, value: large });
});

function piece(text: string): OutputPiece {
  return { stream: "stdout", data: Buffer.from(text), offset: 0 };
}
