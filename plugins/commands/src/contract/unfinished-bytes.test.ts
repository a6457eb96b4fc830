import assert from "node:assert/strict";
import { it } from "node:test";
import { unfinishedBytes } from "./page-json.js";

it("an incomplete character is told from complete ones and from invalid bytes", () => {
  const character = Buffer.from("a€𝄞é");
  const cuts = Array.from({ length: character.length + 1 }, (_, end) =>
    unfinishedBytes(character.subarray(0, end)),
  );
  assert.deepEqual(cuts, [0, 0, 1, 2, 0, 1, 2, 3, 0, 1, 0]);
  for (const bytes of [[0x80, 0x80, 0x80], [0xff], [0xc0], [0xf5, 0x80], [0xe2, 0x82, 0xac, 0x80]]) {
    assert.equal(unfinishedBytes(Uint8Array.from(bytes)), 0, String(bytes));
  }
});
