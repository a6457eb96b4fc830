import assert from "node:assert/strict";
import type { IncomingMessage } from "node:http";
import { it } from "node:test";
import { StringValueSchema } from "@bufbuild/protobuf/wkt";
import { boundedBody } from "./bounded-values.js";

const HEAD_BYTES = 5;

it("a piece with thousands of small envelopes is passed on with few at a time, and whole", async () => {
  // Every envelope of a piece is an object for Connect before the first is read.
  const envelope = Buffer.from([0, 0, 0, 0, 2, 0x7b, 0x7d]);
  const piece = Buffer.concat(Array.from({ length: 9_000 }, () => envelope));
  // Pieces that end within a head, within a message, and at an end.
  const sent = [piece.subarray(0, 3), piece.subarray(3, 20_006), piece.subarray(20_006)];
  const message = { headers: { "content-type": "application/connect+json" } } as unknown as IncomingMessage;
  const passed: Uint8Array[] = [];
  const body = boundedBody(piecesOf(sent), { message, input: StringValueSchema, limitBytes: 1024 });
  for await (const bytes of body) passed.push(bytes);
  assert.deepEqual(Buffer.concat(passed), piece);
  const most = Math.max(...passed.map(({ length }) => length));
  assert.ok(most <= 64 * (HEAD_BYTES + 2) + HEAD_BYTES, `${most} bytes at a time`);
});

async function* piecesOf(pieces: readonly Uint8Array[]): AsyncGenerator<Uint8Array> {
  yield* pieces;
}
