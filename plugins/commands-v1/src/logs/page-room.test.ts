import assert from "node:assert/strict";
import { it } from "node:test";
import { PageRoom } from "./page-room.js";

it("Pages that their clients do not take have room together up to a limit", () => {
  const room = new PageRoom(100);
  const first = room.take(80);
  assert.throws(() => room.take(30), { code: "unavailable" });
  first.shrink(60);
  const second = room.take(40);
  assert.throws(() => room.take(1), { code: "unavailable" });
  second[Symbol.dispose]();
  second[Symbol.dispose]();
  first.shrink(90);
  assert.throws(() => room.take(41), { code: "unavailable" });
  first[Symbol.dispose]();
  room.take(100)[Symbol.dispose]();
});
