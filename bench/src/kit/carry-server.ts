import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer as createHttpServer } from "node:http";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { pipeline } from "node:stream/promises";

// A separate program that answers with the bytes that it reads from a loopback socket, unchanged. The path is their
// number.

const BLOCK_BYTES = 500_000;
const SCRIPT =
  'exec dd if=/dev/zero bs="$1" count="$2" iflag=count_bytes status=none > "/dev/tcp/127.0.0.1/$3"';

const server = createHttpServer((request, response) => {
  const bytes = Number(request.url?.slice(1));
  response.setHeader("content-length", bytes);
  carry(bytes).then(
    (socket) => pipeline(socket, response).catch(() => undefined),
    () => response.destroy(),
  );
});
server.listen(0, "127.0.0.1", () => console.log((server.address() as AddressInfo).port));

async function carry(bytes: number): Promise<Socket> {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port } = listener.address() as AddressInfo;
  const connected = once(listener, "connection") as Promise<[Socket]>;
  spawn("bash", ["-c", SCRIPT, "bash", String(BLOCK_BYTES), String(bytes), String(port)]);
  const [socket] = await connected;
  listener.close();
  return socket;
}
