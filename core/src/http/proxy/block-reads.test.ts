import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { describe, it } from "node:test";
import { blockReads, isLent, releaseBlock } from "./block-reads.js";

const MANY = 8 * 2 ** 20;

describe("reads in blocks", () => {
  it("brings large pieces that stay as they are until they are released", async () => {
    await using pair = await connected();
    let at = 0;
    for (const piece of await pair.read(MANY)) {
      for (let index = 0; index < piece.length; index += 997) assert.equal(piece[index], (at + index) % 251);
      at += piece.length;
    }
  });

  it("reads the next bytes into what was released, and holds no block for a little", async () => {
    await using pair = await connected();
    const seen = new Set<ArrayBufferLike>();
    let pieces = 0;
    await pair.read(MANY, (piece) => {
      if (!isLent(piece)) return;
      pieces += 1;
      seen.add(piece.buffer);
      releaseBlock(piece);
      // Twice is no harm.
      releaseBlock(piece);
    });
    assert.ok(pieces > 4, `${pieces} large pieces`);
    assert.ok(seen.size <= 3, `${seen.size} blocks for ${pieces} pieces`);
    const [first, second] = [await pair.read(5), await pair.read(5)];
    assert.ok(![...first, ...second].some((piece) => isLent(piece)));
  });
});

/** A socket that is read in blocks, and its other end, which counts modulo 251. */
async function connected() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const accepted = once(server, "connection") as Promise<[Socket]>;
  let receive: (bytes: Buffer) => void = () => undefined;
  const { port } = server.address() as AddressInfo;
  const socket = connect({ port, host: "127.0.0.1", onread: blockReads((bytes) => receive(bytes)) });
  const [other] = await accepted;
  return {
    /** @returns the pieces of so many bytes. */
    async read(count: number, use: (piece: Buffer) => void = () => undefined): Promise<Buffer[]> {
      const pieces: Buffer[] = [];
      const { promise, resolve } = Promise.withResolvers<void>();
      let left = count;
      receive = (piece) => {
        pieces.push(piece);
        use(piece);
        left -= piece.length;
        if (left === 0) resolve();
      };
      other.write(Buffer.from(Uint8Array.from({ length: count }, (_, index) => index % 251)));
      await promise;
      return pieces;
    },
    async [Symbol.asyncDispose]() {
      socket.destroy();
      other.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
