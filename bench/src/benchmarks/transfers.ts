import { once } from "node:events";
import { Agent, request as httpRequest, type IncomingMessage } from "node:http";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";
import type { Benchmark } from "../kit/benchmark.js";

const ENVD_PORT = 49_983;
const COUNT = 100;
const MEBIBYTE = 2 ** 20;
const MOST_BYTES = 64 * MEBIBYTE;
const BLOCK = Buffer.alloc(MEBIBYTE, "x");

/** Memory of a server while a hundred files are read and written at once; half of the clients stop for a while. */
export const transfers: Benchmark = async (server, { largeBytes, seconds }) => {
  const bytes = Math.min(MOST_BYTES, largeBytes);
  const sandbox = await server.createSandbox();
  const agent = new Agent({ keepAlive: true });
  const ask = (method: string, name: string) =>
    httpRequest(new URL(`/files?path=${name}`, server.url), {
      agent,
      method,
      headers: {
        ...sandbox.headers(ENVD_PORT),
        ...(method === "POST" && {
          "content-type": "application/octet-stream",
          "content-length": String(bytes),
        }),
      },
    });
  async function* blocks(pauseMs: number): AsyncGenerator<Buffer> {
    for (let left = bytes; left > 0; left -= BLOCK.length) {
      yield BLOCK.subarray(0, left);
      if (left === bytes) await sleep(pauseMs);
    }
  }
  const write = async (name: string, pauseMs: number): Promise<void> => {
    const outgoing = ask("POST", name);
    const answered = once(outgoing, "response") as Promise<[IncomingMessage]>;
    await pipeline(Readable.from(blocks(pauseMs), { objectMode: false }), outgoing);
    const [answer] = await answered;
    await lengthOf(answer, 0);
    if (answer.statusCode !== 200) throw new Error(`the upload was answered ${answer.statusCode}`);
  };
  const read = async (pauseMs: number): Promise<void> => {
    const [answer] = (await once(ask("GET", "read").end(), "response")) as [IncomingMessage];
    const received = await lengthOf(answer, pauseMs);
    if (received !== bytes) throw new Error(`read ${received} of ${bytes} bytes`);
  };
  await write("read", 0);
  const one = async (index: number): Promise<void> => {
    const pauseMs = index % 4 < 2 ? 0 : seconds * 1000;
    await (index % 2 === 0 ? read(pauseMs) : write(`written-${index}`, pauseMs));
  };
  // They pay for connections, caches and compilation.
  await Promise.all([one(0), one(1)]);
  const beforeMiB = server.process.residentBytes() / MEBIBYTE;
  server.process.forgetPeak();
  await Promise.all(Array.from({ length: COUNT }, (_, index) => one(index)));
  const row = `most memory during ${COUNT} transfers of ${bytes / MEBIBYTE} MiB at once`;
  return {
    comparisons: [],
    rows: [{ row, unit: "MiB", here: server.process.peakMiB(), peer: beforeMiB, against: "before them" }],
    async close() {
      agent.destroy();
      await server.killSandbox(sandbox);
    },
  };
};

/** Reads a stream to its end, with a pause after its first piece. */
async function lengthOf(stream: AsyncIterable<Buffer>, pauseMs: number): Promise<number> {
  let bytes = 0;
  for await (const chunk of stream) {
    if (bytes === 0) await sleep(pauseMs);
    bytes += chunk.length;
  }
  return bytes;
}
