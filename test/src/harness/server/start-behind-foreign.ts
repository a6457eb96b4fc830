import { randomBytes } from "node:crypto";
import { freePorts, type TestServer } from "@coppice/core/testing";
import fleet from "@coppice/plugin-fleet";
import { cordon, startEtcd } from "@coppice/plugin-fleet/testing";
import type { FullServerOptions } from "./start-full-server.js";

const LOOPBACK = "127.0.0.1";
const NAMES = ["api", "envd", "code", "ops"];
const OWNER = "owner";
const FOREIGN = "foreign";

/**
 * Starts the server of some options, and another one of its fleet that gets no sandboxes.
 * @returns the first, with the addresses of the other one: whatever a client asks, it asks a foreign server.
 */
export async function startBehindForeign(
  { server = {}, settings = {}, more = [], host, ...options }: FullServerOptions,
  start: (options: FullServerOptions) => Promise<TestServer>,
): Promise<TestServer> {
  const started: AsyncDisposable[] = [];
  const stop = async (): Promise<void> => {
    for (const one of started.splice(0).toReversed()) await one[Symbol.asyncDispose]();
  };
  try {
    const { dataDir, ...rest } = server;
    // Servers that are started again with their data find the fleet's record of them.
    const etcd = await startEtcd(typeof dataDir === "string" ? { kept: `${dataDir}-etcd` } : {});
    started.push(etcd);
    const secret = randomBytes(32).toString("hex");
    const ports = await freePorts(2);
    // Long, because a busy machine must not lose a server: no test of these is about that.
    const common = { secret, etcd: { endpoints: etcd.endpoints }, lease: "600s" };
    const listeners =
      server["listeners"] ?? Object.fromEntries(NAMES.map((name) => [name, { host: LOOPBACK, port: 0 }]));
    const startMember = async (
      node: string,
      port: number | undefined,
      { settings: ownSettings = {}, ...own }: Pick<FullServerOptions, "server" | "settings" | "host">,
    ): Promise<TestServer> => {
      const member = await start({
        ...options,
        ...own,
        settings: ownSettings,
        server: {
          ...own.server,
          listeners: { ...listeners, fleet: { host: LOOPBACK, port } },
          http: {
            drainTimeout: "200ms",
            ...(server["http"] as object | undefined),
            trustedProxies: [LOOPBACK],
          },
        },
        more: [...more, [fleet, { ...common, node, address: `http://${LOOPBACK}:${port}` }]],
      });
      started.push(member);
      return member;
    };
    const owner = await startMember(OWNER, ports[0], { server, settings, ...(host && { host }) });
    await cordon(common.etcd, FOREIGN);
    const { backend = "local-process" } = options;
    const { [backend]: _, ...others } = settings;
    // Two servers of one host need directories of their own.
    const own =
      typeof dataDir === "string"
        ? {
            server: { ...rest, dataDir: `${dataDir}-foreign` },
            settings: { ...others, [backend]: { directory: `${dataDir}-foreign-sandboxes` } },
          }
        : { server: rest, settings: others };
    const { url, urls } = await startMember(FOREIGN, ports[1], own);
    return { ...owner, url, urls, stop, [Symbol.asyncDispose]: stop };
  } catch (error) {
    await stop();
    throw error;
  }
}
