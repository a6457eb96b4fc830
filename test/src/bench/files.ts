import { randomBytes } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { join } from "node:path";
import type { Benchmark, Contender } from "./benchmark.js";
import { type ProgramOnPort, startProgramOnPort } from "./program-on-port.js";

const LARGE_BYTES = 32 * 2 ** 20;
const SMALL_BYTES = 1024;

/** Files up and down, large and small. */
export const files: Benchmark = async (server) => {
  const sandbox = await server.createSandbox();
  const headers = sandbox.headers(49983);
  const write = async (path: string, body: Uint8Array): Promise<void> => {
    const upload = {
      ...headers,
      "content-type": "application/octet-stream",
      "content-length": String(body.length),
    };
    await server.request({ method: "POST", path: `/files?path=${path}`, headers: upload, body }, 200);
  };
  const read = async (path: string, bytes: number): Promise<void> => {
    const { body } = await server.request({ path: `/files?path=${path}`, headers }, 200);
    if (body.length !== bytes) throw new Error(`read ${body.length} of ${bytes} bytes`);
  };

  const program = await startProgramOnPort(new URL("plain-file-server.js", import.meta.url), [
    server.scratch,
  ]);
  const comparisons = [];
  for (const bytes of [LARGE_BYTES, SMALL_BYTES]) {
    const name = `${bytes}.bin`;
    const body = randomBytes(bytes);
    await write(name, body);
    await writeFile(join(server.scratch, name), body);
    const throughput = bytes === LARGE_BYTES ? { bytes } : {};
    const contender = (label: string, once: Contender["once"]): Contender => ({ label, once, ...throughput });
    const size = bytes === LARGE_BYTES ? `${bytes / 2 ** 20} MiB` : `${bytes / 1024} KiB`;
    comparisons.push(
      {
        title: `files: read ${size}`,
        floor: contender("a file into a loopback socket", () => plainRead(program, name, bytes)),
        contenders: [contender("GET /files", () => read(name, bytes))],
      },
      {
        title: `files: write ${size}`,
        floor: contender("a loopback socket into a file", () => plainWrite(program, `floor-${name}`, body)),
        contenders: [contender("POST /files", () => write(`written-${name}`, body))],
      },
    );
  }
  return {
    comparisons,
    async close() {
      await program.end();
      await server.killSandbox(sandbox);
    },
  };
};

async function plainRead(program: ProgramOnPort, name: string, bytes: number): Promise<void> {
  const received = await plainExchange(program, `r${name}\n`, undefined);
  const receivedBytes = received.reduce((sum, chunk) => sum + chunk.length, 0);
  if (receivedBytes !== bytes) throw new Error(`read ${receivedBytes} of ${bytes} bytes`);
}

async function plainWrite(program: ProgramOnPort, name: string, body: Uint8Array): Promise<void> {
  const received = await plainExchange(program, `w${name}\n`, body);
  if (Buffer.concat(received).toString() !== "ok") throw new Error("the plain server did not take the file");
}

async function plainExchange(
  { port }: ProgramOnPort,
  head: string,
  body: Uint8Array | undefined,
): Promise<readonly Buffer[]> {
  const socket = connect({ port, host: "127.0.0.1", noDelay: true });
  socket.write(head);
  if (body === undefined) socket.end();
  else socket.end(body);
  const received: Buffer[] = [];
  for await (const chunk of socket as AsyncIterable<Buffer>) received.push(chunk);
  return received;
}
