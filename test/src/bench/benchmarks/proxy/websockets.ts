import { execFile } from "node:child_process";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { promisify } from "node:util";
import { freePort } from "@coppice/core/testing";
import { eventually } from "../../../harness/host/eventually.js";
import type { Benchmark } from "../../kit/benchmark.js";
import { BenchedServer } from "../../kit/benched-server.js";

const MIB = 2 ** 20;
const LIMIT_MIB = 400;
const AT_ONCE = 50;
/** The server has two for each WebSocket, and this process one. */
const DESCRIPTORS = 65_536;
const UPGRADED =
  "HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n";
/** Takes every connection for a WebSocket, and says nothing more. */
const PROGRAM = `
import asyncio, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
async def serve(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"${UPGRADED}")
    await reader.read()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=1024)
    await server.serve_forever()
asyncio.run(main())`;

/** Memory of a server with idle WebSockets to a port of a sandbox. */
export const websockets: Benchmark = async (_server, { backend, connections }) => {
  await using server = await BenchedServer.start(backend, {
    http: { maxConnections: 2 * connections, maxConnectionsPerAddress: 2 * connections },
  });
  for (const pid of [process.pid, server.process.pid]) await allowDescriptors(pid);
  const sandbox = await server.createSandbox();
  const port = await freePort();
  await server.run(sandbox, "sh", [
    "-c",
    'python3 -c "$1" "$2" >/dev/null 2>&1 &',
    "sh",
    PROGRAM,
    String(port),
  ]);
  const host = `${port}-${sandbox.id}.localhost`;
  const open = (): Promise<Socket> => openWebSocket(Number(new URL(server.url).port), host);
  const first = await eventually("the program in the sandbox answers", () => open().catch(() => undefined));
  first.destroy();
  const closed = server.process.descriptors();
  const beforeMiB = server.process.residentBytes() / MIB;
  const sockets: Socket[] = [];
  try {
    while (sockets.length < connections) {
      const batch = Math.min(AT_ONCE, connections - sockets.length);
      sockets.push(...(await Promise.all(Array.from({ length: batch }, open))));
    }
    const openMiB = server.process.residentBytes() / MIB;
    for (const socket of sockets) socket.destroy();
    await eventually("all descriptors are closed", () => server.process.descriptors() <= closed, 30_000);
    await server.killSandbox(sandbox);
    const row = `memory of a server with ${connections} idle WebSockets`;
    return {
      notes: [`websockets: a server without any has ${beforeMiB.toFixed(0)} MiB`],
      comparisons: [],
      rows: [{ row, unit: "MiB", here: openMiB, peer: LIMIT_MIB, against: "its limit" }],
      close: async () => undefined,
    };
  } finally {
    for (const socket of sockets) socket.destroy();
  }
};

async function openWebSocket(port: number, host: string): Promise<Socket> {
  const socket = connect({ port, host: "127.0.0.1" });
  try {
    socket.write(
      `GET / HTTP/1.1\r\nHost: ${host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n` +
        `Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${"A".repeat(22)}==\r\n\r\n`,
    );
    const [answer] = (await once(socket, "data")) as [Buffer];
    if (!answer.toString("latin1").startsWith("HTTP/1.1 101 ")) throw new Error(answer.toString("latin1"));
    socket.on("error", () => undefined);
    return socket;
  } catch (error) {
    socket.destroy();
    throw error;
  }
}

/** Only root may; other users have what their system allows. */
async function allowDescriptors(pid: number): Promise<void> {
  const limit = `--nofile=${DESCRIPTORS}:${DESCRIPTORS}`;
  await promisify(execFile)("prlimit", ["--pid", String(pid), limit]).catch(() => undefined);
}
