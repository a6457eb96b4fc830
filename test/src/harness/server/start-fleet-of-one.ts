import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { freePort, type TestServer } from "@coppice/core/testing";
import fleet from "@coppice/plugin-fleet";
import { startEtcd } from "@coppice/plugin-fleet/testing";
import type { FullServerOptions } from "./start-full-server.js";

const LOOPBACK = "127.0.0.1";
const NAMES = ["api", "envd", "code", "ops"];

/**
 * Starts the server of some options as the only one of a fleet.
 * @param store `sqlite` or `etcd`; it is kept beside the `dataDir` of the options, for a server that is started again.
 */
export async function startFleetOfOne(
  store: string,
  { server = {}, more = [], ...options }: FullServerOptions,
  start: (options: FullServerOptions) => Promise<TestServer>,
): Promise<TestServer> {
  await using starting = new AsyncDisposableStack();
  const { dataDir } = server;
  let place: string;
  if (typeof dataDir === "string") {
    place = `${dataDir}-fleet`;
    await mkdir(place, { recursive: true });
  } else {
    place = await mkdtemp(join(tmpdir(), "coppice-fleet-of-one-"));
    starting.defer(() => rm(place, { recursive: true }));
  }
  const port = await freePort();
  const settings = {
    node: "one",
    address: `http://${LOOPBACK}:${port}`,
    secret: "5eed".repeat(16),
    ...(store === "etcd"
      ? { etcd: { endpoints: starting.use(await startEtcd({ kept: place })).endpoints } }
      : { file: join(place, "fleet.sqlite") }),
  };
  const listeners =
    server["listeners"] ?? Object.fromEntries(NAMES.map((name) => [name, { host: LOOPBACK, port: 0 }]));
  const one = starting.use(
    await start({
      ...options,
      server: { ...server, listeners: { ...listeners, fleet: { host: LOOPBACK, port } } },
      more: [...more, [fleet, settings]],
    }),
  );
  const started = starting.move();
  const stop = () => started.disposeAsync();
  return { ...one, stop, [Symbol.asyncDispose]: stop };
}
