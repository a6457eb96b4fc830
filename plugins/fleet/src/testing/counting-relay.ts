import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";

/** Passes connections on to a server, counts their bytes, and shows what clients send. */
export interface CountingRelay extends AsyncDisposable {
  readonly url: string;
  /** Of all connections so far, both ways. */
  readonly bytes: number;
}

export async function startCountingRelay(
  url: string,
  onSent: (bytes: Buffer) => void = () => {},
): Promise<CountingRelay> {
  const { hostname: host, port } = new URL(url);
  const sockets = new Set<Socket>();
  let bytes = 0;
  const server = createServer((near) => {
    const far = connect({ host, port: Number(port) });
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(from);
      if (from === near) near.on("data", onSent);
      from.on("data", (part) => (bytes += part.length));
      from.pipe(to);
      from.on("error", () => to.destroy());
      from.on("close", () => (sockets.delete(from), to.destroy()));
    }
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    get bytes() {
      return bytes;
    },
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  };
}
