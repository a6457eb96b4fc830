import { spawn } from "node:child_process";
import { once } from "node:events";
import { type AddressInfo, createServer, type Socket } from "node:net";

/** Which way the bytes go, seen from `cat`. */
export type Direction = "from the file" | "into the file";

/**
 * Lets `cat` move a file through a loopback socket: the least work that a transfer takes. Resolves when `cat` has
 * ended.
 * @param exchange drives this side of the socket.
 * @throws Error unless `cat` ends with 0.
 */
export async function loopbackCat(
  path: string,
  direction: Direction,
  exchange: (socket: Socket) => Promise<void>,
): Promise<void> {
  const server = createServer({ allowHalfOpen: true, noDelay: true }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const accepted = once(server, "connection") as Promise<[Socket]>;
  // Bash redirects to sockets by /dev/tcp. The path is a parameter, so that bash does not parse it as code.
  const script =
    direction === "from the file"
      ? 'exec cat < "$1" > "/dev/tcp/127.0.0.1/$2"'
      : 'exec cat < "/dev/tcp/127.0.0.1/$2" > "$1"';
  const child = spawn("bash", ["-c", script, "bash", path, String(port)], { stdio: "inherit" });
  const ended = once(child, "exit") as Promise<[number | null]>;
  const [socket] = await accepted;
  await exchange(socket);
  const [code] = await ended;
  socket.destroy();
  server.close();
  if (code !== 0) throw new Error(`cat ended with ${code}`);
}
