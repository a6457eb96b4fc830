import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { eventually, freePort } from "@coppice/core/testing";
import type { Benchmark } from "../../kit/benchmark.js";
import { BenchedServer } from "../../kit/benched-server.js";

const MIB = 2 ** 20;
const LIMIT_MIB = 400;
const AT_ONCE = 50;
const UPGRADED =
  "HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n";
/** Takes every connection for a WebSocket, and says nothing more. */
const PROGRAM = `
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1024)
kept = []
while True:
    one = listening.accept()[0]
    one.recv(65536)
    one.sendall(b"${UPGRADED}")
    kept.append(one)`;

/** Memory of a server with idle WebSockets to a port of a sandbox, each of which has two of its descriptors. */
export const websockets: Benchmark = async (_server, { backend, connections }) => {
  const most = 2 * connections;
  await using server = await BenchedServer.start(backend, {
    http: { maxConnections: most, maxConnectionsPerAddress: most, proxyMaxExchanges: most },
  });
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
    const lost = sockets.filter(({ destroyed }) => destroyed).length;
    if (lost > 0) throw new Error(`${lost} of ${connections} WebSockets were closed`);
    const openMiB = server.process.residentBytes() / MIB;
    for (const socket of sockets) socket.destroy();
    await eventually("all descriptors are closed", () => !(server.process.descriptors() > closed), 30_000);
    await server.killSandbox(sandbox);
    const afterMiB = server.process.residentBytes() / MIB;
    const row = `memory of a server with ${connections} idle WebSockets`;
    return {
      notes: [`websockets: ${beforeMiB.toFixed(0)} MiB before them, ${afterMiB.toFixed(0)} MiB after them`],
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
  // One that is reset later is missed when it is counted.
  socket.on("error", () => undefined);
  try {
    socket.write(
      `GET / HTTP/1.1\r\nHost: ${host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n` +
        `Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${"A".repeat(22)}==\r\n\r\n`,
    );
    const [answer] = (await once(socket, "data")) as [Buffer];
    if (!answer.toString("latin1").startsWith("HTTP/1.1 101 ")) throw new Error(answer.toString("latin1"));
    return socket;
  } catch (error) {
    socket.destroy();
    throw error;
  }
}
