import assert from "node:assert/strict";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, it } from "node:test";
import { SandboxError } from "@coppice/core";
import {
  type AddressLeases,
  ALL_TRAFFIC,
  type NetworkLeases,
  type Sandbox,
  type SandboxBackend,
} from "@coppice/core/backend";
import { eventually, MemoryLeases } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { exchange } from "../../harness/clients/exchange.js";
import {
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";
import { newId } from "../../harness/freebsd/jail-faults.js";
import { reachesOut } from "../../harness/freebsd/reaches-out.js";
import { Scrape } from "../../harness/clients/scrape.js";
import { makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

const skip = reasonWithoutFreebsdHost() ?? false;
const POOL_TIMEOUT_MS = 30_000;

async function make(backend: SandboxBackend, allowInternetAccess = true): Promise<Sandbox> {
  const spec = { id: newId(), template: "base", limits: {}, allowInternetAccess };
  return backend.provision(spec, new AbortController().signal);
}

/** Connected jails with their addresses, which number their epairs, as `<id> <address>`. */
async function jailsOf(host: FreebsdHost): Promise<readonly string[]> {
  const listed = await host.run(host.settings.programs.ifconfig, "-a");
  const links = listed.matchAll(/^epair10(\d{3})a: .*\n\tdescription: e2b-(\S+)$/gm);
  return Array.from(links, ([, number, id]) => `${id} 10.78.0.${Number(number)}`).toSorted();
}

/** Leases whose server ends before or after one of the steps that change them: that step never completes. */
class EndingLeases implements AddressLeases {
  /** Resolves when the server has ended. */
  readonly ended: Promise<void>;
  readonly #leases: AddressLeases;
  readonly #end: () => void;
  #stepsLeft: number;

  constructor(leases: AddressLeases, stepsLeft: number) {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#leases = leases;
    this.ended = promise;
    this.#end = resolve;
    this.#stepsLeft = stepsLeft;
  }

  of(network: string): NetworkLeases {
    const leases = this.#leases.of(network);
    const between = async <T>(change: () => Promise<T>): Promise<T> => {
      await this.#step();
      const changed = await change();
      await this.#step();
      return changed;
    };
    return {
      ...leases,
      take: (holder, addresses) => between(() => leases.take(holder, addresses)),
      release: (holder) => between(() => leases.release(holder)),
    };
  }

  #step(): Promise<void> {
    if (this.#stepsLeft-- > 0) return Promise.resolve();
    this.#end();
    return new Promise(() => {});
  }
}

describe("the addresses of jails", { skip }, () => {
  it("are in the ledger when their server is killed, those of a warm pool too, and go with their sandboxes", async () => {
    await using host = await openFreebsdHost({ isConnected: true });
    const sandboxes = { defaultBackend: "jail-freebsd", templates: { base: { pool: { min: 1 } } } };
    const installation = await makeInstallation({
      config: { sandboxes },
      plugins: () => ({ "jail-freebsd": host.configuration }),
    });
    const call = (server: ServerProcess, method: string, path: string) =>
      exchange(server.url, {
        method,
        path,
        headers: { "x-api-key": API_KEY, "content-type": "application/json" },
        ...(method === "POST" && { body: JSON.stringify({ templateID: "base", timeout: 300 }) }),
      });
    const poolIsFull = (server: ServerProcess) =>
      eventually(
        "a sandbox waits in the pool",
        async () => (await Scrape.of(server.urls["ops"] ?? "")).sum("coppice_sandboxes_warm") === 1,
        POOL_TIMEOUT_MS,
      );
    const ledger = <T>(use: (database: DatabaseSync) => T): T => {
      const database = new DatabaseSync(join(installation.directory, "data", "ledger.sqlite"));
      try {
        return use(database);
      } finally {
        database.close();
      }
    };
    const leased = () =>
      ledger((database) =>
        database
          .prepare("SELECT holder || ' ' || address AS lease FROM address_lease ORDER BY lease")
          .all()
          .map((row) => row["lease"]),
      );
    const kill = async (server: ServerProcess) => {
      server.signal("SIGKILL");
      await server.ended;
    };
    let server: ServerProcess | undefined;
    try {
      server = await ServerProcess.start(installation.configFile);
      await poolIsFull(server);
      const { sandboxID: id } = (await call(server, "POST", "/sandboxes")).json() as { sandboxID: string };
      await poolIsFull(server);
      await kill(server);
      const before = await jailsOf(host);
      assert.equal(before.length, 2);
      assert.deepEqual(leased(), before);

      // One lease whose server ended before its sandbox existed, and one that an older copy of the ledger does not
      // have.
      ledger((database) =>
        database.exec(
          `UPDATE address_lease SET holder = 'ghost', address = '10.78.9.9' WHERE holder = '${id}'`,
        ),
      );
      server = await ServerProcess.start(installation.configFile);
      await poolIsFull(server);
      await kill(server);
      const after = await jailsOf(host);
      assert.deepEqual(
        after.filter((jail) => before.includes(jail)),
        before.filter((jail) => jail.startsWith(`${id} `)),
        "only what its client has lives on, where it was",
      );
      assert.equal(after.length, 2);
      assert.deepEqual(leased(), after);

      server = await ServerProcess.start(installation.configFile);
      assert.equal((await call(server, "DELETE", `/sandboxes/${id}`)).status, 204);
      await server.stop();
      assert.deepEqual(leased(), []);
      assert.deepEqual(await host.leaks(), []);
    } finally {
      server?.signal("SIGKILL");
      await installation.remove();
    }
  });

  it("are leased again where the ledger was lost, or gives them to somebody who is gone", async () => {
    await using host = await openFreebsdHost({ isConnected: true });
    const first = host.backend();
    const kept = await Promise.all([make(first), make(first)]);
    await first.close();
    const before = host.leases.list();
    const leases = new MemoryLeases();
    const { address = "", network = "" } = before[0] ?? {};
    await leases.of(network).take("gone", [address]);

    const second = host.backend({}, { leases });
    const found = await second.recover();
    const byAddress = (all: typeof before) => new Map(all.map((lease) => [lease.address, lease.holder]));
    assert.deepEqual(byAddress(leases.list()), byAddress(before));
    assert.equal(found.length, kept.length);
    const more = await make(second);
    assert.equal(leases.list().length, 3);
    for (const sandbox of [...found, more]) {
      assert.ok(await reachesOut(sandbox), `${sandbox.id} is not connected`);
      await sandbox.destroy();
    }
    assert.deepEqual(leases.list(), []);
    await second.close();
    // No jail has an address of the lost ledger.
    const third = host.backend();
    assert.deepEqual(await third.recover(), []);
    assert.deepEqual(await host.leaks(), []);
    await third.close();
  });

  it("are given back later where the ledger cannot be written when a sandbox is destroyed", async () => {
    await using host = await openFreebsdHost({ isConnected: true });
    let isFull = true;
    const leases: AddressLeases = {
      of: (network) => {
        const own = host.leases.of(network);
        const release = async (holder: string) => {
          if (isFull) throw new SandboxError("store_unavailable", "the server cannot write its ledger now");
          await own.release(holder);
        };
        return { ...own, release };
      },
    };
    const backend = host.backend({}, { leases });
    await backend.recover();
    const sandbox = await make(backend);
    await sandbox.destroy();
    const lease = `lease 10.78.0.10 of ${sandbox.id}`;
    assert.deepEqual(await host.leaks(), [lease]);
    await backend.sweep();
    assert.deepEqual(await host.leaks(), [lease]);
    isFull = false;
    await backend.sweep();
    assert.deepEqual(await host.leaks(), []);
    await backend.close();
  });

  it("are leased before there is anything of a connection, and as long as there may be", async () => {
    await using host = await openFreebsdHost({ isConnected: true });
    const open = { allowOut: [], denyOut: [] };
    const live = async (backend: SandboxBackend) => {
      const sandbox = await make(backend, false);
      await sandbox.networking?.restrict(open);
      await sandbox.destroy();
    };
    for (let steps = 0; ; steps++) {
      const leases = new EndingLeases(host.leases, steps);
      const backend = host.backend({}, { leases });
      const hasEnded = await Promise.race([leases.ended.then(() => true), live(backend).then(() => false)]);
      await backend.close();
      const next = host.backend();
      for (const sandbox of await next.recover()) {
        await sandbox.networking?.restrict(open);
        assert.ok(await reachesOut(sandbox), `it is not connected after ${steps} steps`);
        await sandbox.networking?.restrict({ allowOut: [], denyOut: [ALL_TRAFFIC] });
        assert.ok(!(await reachesOut(sandbox)), `it is connected after ${steps} steps`);
        await sandbox.destroy();
      }
      assert.deepEqual(await host.leaks(), [], `left behind after ${steps} steps`);
      await next.close();
      if (hasEnded) continue;
      assert.equal(steps, 4);
      return;
    }
  });
});
