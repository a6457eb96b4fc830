import assert from "node:assert/strict";
import { it } from "node:test";
import { type MemoryPlace, MemoryRoom } from "./memory-room.js";

const MEBIBYTE = 2 ** 20;

it("a full room is given up by who holds the most of the sandbox and tenant that hold the most", () => {
  const room = new MemoryRoom(100 * MEBIBYTE);
  const givenUp: string[] = [];
  const open = (tenant: string, sandbox: string, name: string): MemoryPlace =>
    room.open({ tenant, sandbox, giveUp: () => givenUp.push(name) }).place();
  const places = [
    open("evil", "1", "a"),
    open("evil", "1", "b"),
    open("evil", "2", "c"),
    open("good", "3", "d"),
  ];
  const [a, b, c, d] = places;
  a?.resize(25 * MEBIBYTE);
  b?.resize(30 * MEBIBYTE);
  // One message of the good tenant is larger than any of the other one, which has more of them.
  c?.resize(5 * MEBIBYTE);
  d?.resize(39 * MEBIBYTE);
  assert.deepEqual(givenUp, []);
  d?.resize(45 * MEBIBYTE);
  assert.deepEqual(givenUp, ["b"]);
  // What was given up counts no more, whatever becomes of it.
  b?.resize(90 * MEBIBYTE);
  d?.resize(60 * MEBIBYTE);
  assert.deepEqual(givenUp, ["b"]);
  d?.[Symbol.dispose]();
  a?.resize(96 * MEBIBYTE);
  assert.deepEqual(givenUp, ["b", "a"]);
});

it("small messages need no room, and one that is larger than it all is given up itself", () => {
  const room = new MemoryRoom(MEBIBYTE);
  let ends = 0;
  const held = room.open({ tenant: "t", sandbox: "s", giveUp: () => ends++ });
  for (let count = 0; count < 100; count += 1) held.place().resize(64 * 1024);
  assert.equal(ends, 0);
  held.place().resize(MEBIBYTE + 1);
  assert.equal(ends, 1);
});
