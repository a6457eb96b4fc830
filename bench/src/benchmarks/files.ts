import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { Agent, request as httpRequest, type IncomingMessage } from "node:http";
import { join } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { Benchmark, Comparison, Contender } from "../kit/benchmark.js";
import { loopbackCat } from "../kit/loopback-cat.js";

const SMALL_BYTES = 1024;
const BLOCK = randomBytes(2 ** 20);

/** Uploads and downloads of large and small files, piece by piece. */
export const files: Benchmark = async (server, { largeBytes }) => {
  const sandbox = await server.createSandbox();
  const headers = sandbox.headers(49983);
  const { hostname, port } = new URL(server.url);
  const agent = new Agent({ keepAlive: true });
  const ask = (method: string, path: string, more: Readonly<Record<string, string>> = {}) =>
    httpRequest({
      hostname,
      port,
      agent,
      method,
      path: `/files?path=${path}`,
      headers: { ...headers, ...more },
    });
  const write = async (path: string, bytes: number): Promise<void> => {
    const outgoing = ask("POST", path, {
      "content-type": "application/octet-stream",
      "content-length": String(bytes),
    });
    const answered = once(outgoing, "response") as Promise<[IncomingMessage]>;
    await pipeline(Readable.from(blocks(bytes), { objectMode: false }), outgoing);
    const [answer] = await answered;
    await drained(answer);
    if (answer.statusCode !== 200) throw new Error(`the upload was answered ${answer.statusCode}`);
  };
  const read = async (path: string, bytes: number): Promise<void> => {
    const outgoing = ask("GET", path).end();
    const [answer] = (await once(outgoing, "response")) as [IncomingMessage];
    expectBytes(await drained(answer), bytes);
  };

  const floorPath = (bytes: number): string => join(server.scratch, `floor-${bytes}`);
  const floorWrite = (bytes: number): Promise<void> =>
    loopbackCat(floorPath(bytes), "into the file", (socket) =>
      pipeline(Readable.from(blocks(bytes), { objectMode: false }), socket),
    );
  const floorRead = (bytes: number): Promise<void> =>
    loopbackCat(floorPath(bytes), "from the file", async (socket) =>
      expectBytes(await drained(socket), bytes),
    );

  const comparisons: Comparison[] = [];
  for (const bytes of [largeBytes, SMALL_BYTES]) {
    const name = `${bytes}.bin`;
    await write(name, bytes);
    await floorWrite(bytes);
    const contender = (label: string, once: Contender["once"]): Contender => ({
      label,
      once,
      ...(bytes > SMALL_BYTES && { bytes }),
    });
    const size = bytes > SMALL_BYTES ? `${bytes / 2 ** 20} MiB` : `${bytes / 1024} KiB`;
    const watched = server.process;
    comparisons.push(
      {
        title: `files: read ${size}`,
        floor: contender("cat of a file into a loopback socket", () => floorRead(bytes)),
        contenders: [{ ...contender("GET /files", () => read(name, bytes)), watched }],
      },
      {
        title: `files: write ${size}`,
        floor: contender("cat of a loopback socket into a file", () => floorWrite(bytes)),
        contenders: [{ ...contender("POST /files", () => write(`written-${name}`, bytes)), watched }],
      },
    );
  }
  return {
    comparisons,
    async close() {
      agent.destroy();
      await server.killSandbox(sandbox);
    },
  };
};

function* blocks(bytes: number): Generator<Buffer> {
  for (let left = bytes; left > 0; left -= BLOCK.length) yield BLOCK.subarray(0, left);
}

/**
 * Reads a stream to its end.
 * @returns its length in bytes
 */
async function drained(stream: AsyncIterable<Buffer>): Promise<number> {
  let bytes = 0;
  for await (const chunk of stream) bytes += chunk.length;
  return bytes;
}

function expectBytes(actual: number, expected: number): void {
  if (actual !== expected) throw new Error(`read ${actual} of ${expected} bytes`);
}
