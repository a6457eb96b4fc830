import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { Agent, request as httpRequest, type IncomingMessage } from "node:http";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { DrainingClient } from "../kit/draining-client.js";
import { repeated } from "../report/repeated.js";
import type { ServerClient } from "../kit/server-client.js";
import { summarize } from "../report/statistics.js";
import type { PreparedRow, Row } from "./row.js";

const ENVD_PORT = 49_983;
const MEBIBYTE = 2 ** 20;
const BLOCK = randomBytes(MEBIBYTE);
const SMALL_BYTES = 1024;
const PATH = "/files?path=row.bin";

/** A download by GET /files. A peer that takes no uploads, as nginx, serves a file of that size there. */
export const downloadRows: readonly Row[] = [
  {
    label: "download of one file",
    unit: "MiB/s",
    prepare: (server, { largeBytes }) =>
      fileRow(server, async ({ read, size, write }) => {
        if ((await size()) !== largeBytes) await write(largeBytes);
        return async () => {
          const startMs = performance.now();
          const bytes = await read();
          if (bytes !== largeBytes) throw new Error(`the file has ${bytes} bytes, not ${largeBytes}`);
          return rateOf(bytes, startMs);
        };
      }),
  },
];

/** Uploads by POST /files. */
export const fileRows: readonly Row[] = [
  ...downloadRows,
  {
    label: "upload of one file",
    unit: "MiB/s",
    prepare: (server, { largeBytes }) =>
      fileRow(server, async ({ write }) => async () => {
        const startMs = performance.now();
        await write(largeBytes);
        return rateOf(largeBytes, startMs);
      }),
  },
  {
    label: "1 KiB written and read",
    unit: "ms",
    prepare: (server, { seconds }) =>
      fileRow(server, async ({ read, write }) => async () => {
        const both = async (): Promise<void> => {
          await write(SMALL_BYTES);
          await read();
        };
        return summarize(await repeated(both, seconds)).p50;
      }),
  },
];

interface FileClient {
  /** Length of the file of the row, as the server tells it. */
  readonly size: () => Promise<number>;
  /** Writes the file of the row. */
  readonly write: (bytes: number) => Promise<void>;
  /** Reads it. @returns its length */
  readonly read: () => Promise<number>;
}

async function fileRow(
  server: ServerClient,
  open: (client: FileClient) => Promise<PreparedRow["measure"]>,
): Promise<PreparedRow> {
  const sandbox = await server.createSandbox();
  const headers = sandbox.headers(ENVD_PORT);
  const agent = new Agent({ keepAlive: true });
  const draining = new DrainingClient(Number(new URL(server.url).port));
  const head = [
    `GET ${PATH} HTTP/1.1`,
    ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
  ];
  const measure = await open({
    async size() {
      const asked = httpRequest(new URL(PATH, server.url), { agent, method: "HEAD", headers }).end();
      const [answer] = (await once(asked, "response")) as [IncomingMessage];
      answer.resume();
      return Number(answer.headers["content-length"]);
    },
    async write(bytes) {
      const outgoing = httpRequest(new URL(PATH, server.url), {
        agent,
        method: "POST",
        headers: { ...headers, "content-type": "application/octet-stream", "content-length": bytes },
      });
      const answered = once(outgoing, "response") as Promise<[IncomingMessage]>;
      await pipeline(Readable.from(blocks(bytes), { objectMode: false }), outgoing);
      const [answer] = await answered;
      answer.resume();
      await once(answer, "end");
      if (answer.statusCode !== 200) throw new Error(`the upload was answered ${answer.statusCode}`);
    },
    read: async () => (await draining.exchange(head)).bytes,
  });
  return {
    measure,
    async close() {
      agent.destroy();
      draining.close();
      await server.killSandbox(sandbox);
    },
  };
}

function* blocks(bytes: number): Generator<Buffer> {
  for (let left = bytes; left > 0; left -= BLOCK.length) yield BLOCK.subarray(0, left);
}

function rateOf(bytes: number, startMs: number): number {
  return (bytes / MEBIBYTE / (performance.now() - startMs)) * 1000;
}
