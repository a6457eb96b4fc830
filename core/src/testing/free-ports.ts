import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";

/** Ports of loopback that nothing listens on now, all of them different. */
export async function freePorts(count: number): Promise<readonly number[]> {
  const servers = Array.from({ length: count }, () => createServer());
  const ports = servers.map(async (server) => {
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return (server.address() as AddressInfo).port;
  });
  const found = await Promise.all(ports);
  await Promise.all(servers.map(async (server) => once(server.close(), "close")));
  return found;
}

/** One such port. */
export async function freePort(): Promise<number> {
  const [port = 0] = await freePorts(1);
  return port;
}
