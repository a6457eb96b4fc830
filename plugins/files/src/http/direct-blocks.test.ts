import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { Writable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { describe, it } from "node:test";
import { blocksOf } from "./download-body.js";

const MEBIBYTE = 2 ** 20;
const data = randomBytes(5 * MEBIBYTE + 3);
const file = {
  read: async (target: Uint8Array, position: number) =>
    data.copy(target, 0, position, position + target.byteLength),
};

/** Looks at each chunk only after a while, as a slow client does. */
function slowly(received: Buffer[]): Writable {
  return new Writable({
    write(chunk: Buffer, _encoding, done) {
      setTimeout(() => {
        received.push(Buffer.from(chunk));
        done();
      }, 1);
    },
  });
}

describe("blocks of a file", () => {
  it("are the bytes of the range, however slowly they are taken", async () => {
    for (const [start, length] of [
      [0, data.length],
      [7, 3 * MEBIBYTE],
      [data.length - 5, 5],
    ] as const) {
      const received: Buffer[] = [];
      await pipeline(blocksOf(file, { start, length }), slowly(received));
      assert.ok(Buffer.concat(received).equals(data.subarray(start, start + length)));
    }
  });

  it("stay what they were while they are taken, also where a read brings little", async () => {
    const piecewise = {
      read: async (target: Uint8Array, position: number) =>
        data.copy(target, 0, position, position + Math.min(target.byteLength, 40_000)),
    };
    const received: Buffer[] = [];
    await pipeline(blocksOf(piecewise, { start: 0, length: data.length }), slowly(received));
    assert.ok(Buffer.concat(received).equals(data));
  });

  it("are smaller the more files are read at once, so that all take bounded memory", async () => {
    const alone = blocksOf(file, { start: 0, length: data.length });
    const first = await alone.next();
    assert.equal(first.value?.byteLength, MEBIBYTE / 2);
    const many = Array.from({ length: 200 }, () => blocksOf(file, { start: 0, length: data.length }));
    await Promise.all(many.map((each) => each.next()));
    const last = blocksOf(file, { start: 0, length: data.length });
    assert.equal((await last.next()).value?.byteLength, 64 * 1024);
    for (const each of [alone, ...many, last]) await each.return(undefined);
    const again = blocksOf(file, { start: 0, length: data.length });
    assert.equal((await again.next()).value?.byteLength, MEBIBYTE / 2);
    await again.return(undefined);
  });

  it("end with the file, or with its error", async () => {
    const received: Buffer[] = [];
    await pipeline(blocksOf(file, { start: MEBIBYTE, length: 9 * MEBIBYTE }), slowly(received));
    assert.ok(Buffer.concat(received).equals(data.subarray(MEBIBYTE)));
    const broken = { read: async () => Promise.reject(new Error("gone")) };
    await assert.rejects(pipeline(blocksOf(broken, { start: 0, length: 9 }), slowly([])), /gone/);
  });
});
