import { randomBytes } from "node:crypto";
import { eventually, freePort } from "@coppice/core/testing";
import { type Cluster, cordon, startEtcd } from "@coppice/plugin-fleet/testing";
import type { BackendName } from "@coppice/test/harness/server/start-full-server.js";
import { BenchedServer } from "./benched-server.js";

const LOOPBACK = "127.0.0.1";
const MEMBERS = 'coppice_fleet_servers{state="member"}';

/** Two servers in processes of their own, which are one fleet on a real etcd. New sandboxes come to the first alone. */
export class BenchedFleet implements AsyncDisposable {
  readonly owner: BenchedServer;
  readonly foreign: BenchedServer;
  readonly #etcd: Cluster;

  private constructor(etcd: Cluster, owner: BenchedServer, foreign: BenchedServer) {
    this.#etcd = etcd;
    this.owner = owner;
    this.foreign = foreign;
  }

  static async start(backend: BackendName): Promise<BenchedFleet> {
    await using started = new AsyncDisposableStack();
    const etcd = started.use(await startEtcd());
    const secret = randomBytes(32).toString("hex");
    const store = { endpoints: etcd.endpoints };
    await cordon(store, "foreign");
    const member = async (node: string): Promise<BenchedServer> =>
      started.use(await startMember(backend, { node, secret, etcd: store }));
    const owner = await member("owner");
    const foreign = await member("foreign");
    for (const one of [owner, foreign])
      await eventually("both know each other", async () => (await one.metric(MEMBERS)) === 2);
    started.move();
    return new BenchedFleet(etcd, owner, foreign);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.foreign[Symbol.asyncDispose]();
    await this.owner[Symbol.asyncDispose]();
    await this.#etcd[Symbol.asyncDispose]();
  }
}

/** Starts a server of a fleet. @param etcd as in the configuration. */
export async function startMember(
  backend: BackendName,
  fleet: { readonly node: string; readonly secret: string; readonly etcd: object },
): Promise<BenchedServer> {
  const port = await freePort();
  const listener = { host: LOOPBACK, port: 0 };
  return BenchedServer.start(backend, {
    listeners: { api: listener, ops: listener, fleet: { host: LOOPBACK, port } },
    // A stall of the machine is not what is measured.
    settings: { fleet: { ...fleet, address: `http://${LOOPBACK}:${port}`, lease: "60s" } },
  });
}
