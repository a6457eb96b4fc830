import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { fakeClock, runVerb } from "@coppice/core/testing";
import { fleetConfig } from "../fleet-config.js";
import { FleetSecrets } from "../trust/fleet-secrets.js";
import { NODES, nodeText, setCordon } from "../membership/node-record.js";
import { plugin } from "../plugin.js";
import { withStore } from "./fleet-verbs.js";

describe("coppice fleet", () => {
  it("tells why no member of etcd answers", async () => {
    const config = fleetConfig.parse({
      address: "http://127.0.0.1:3100",
      secret: "0123456789abcdef0123456789abcdef",
      etcd: { endpoints: ["http://127.0.0.1:1"] },
    });
    const asking = withStore({ config, clock: fakeClock() }, (store) => store.get(NODES));
    const message = /store cannot be reached, please retry: connect ECONNREFUSED 127\.0\.0\.1:1/;
    await assert.rejects(asking, { reason: "fleet_unavailable", message });
  });

  it("names a certificate that is not there", async () => {
    const config = fleetConfig.parse({
      address: "http://127.0.0.1:3100",
      secret: "0123456789abcdef0123456789abcdef",
      etcd: { endpoints: ["https://127.0.0.1:1"], ca: "/absent/ca.pem" },
    });
    const asking = withStore({ config, clock: fakeClock() }, (store) => store.get(NODES));
    await assert.rejects(asking, { reason: "fleet_unavailable", message: /ENOENT.*absent.ca\.pem/ });
  });

  it("tells why etcd refuses, in a line and not as a crash", async () => {
    const etcd = createServer((_, response) => {
      response.writeHead(400).end(JSON.stringify({ code: 3, message: "invalid user ID or password" }));
    }).listen(0, "127.0.0.1");
    await once(etcd, "listening");
    const url = `http://127.0.0.1:${(etcd.address() as AddressInfo).port}`;
    const config = fleetConfig.parse({
      address: "http://127.0.0.1:3100",
      secret: "0123456789abcdef0123456789abcdef",
      etcd: { endpoints: [url], user: "fleet", password: "mistyped" },
    });
    const asking = withStore({ config, clock: fakeClock() }, (store) => store.get(NODES));
    const message = "invalid user ID or password (see fleet.etcd)";
    await assert.rejects(asking, { reason: "fleet_unavailable", message });
    etcd.close();
  });

  it("cordons, drains and removes only servers that the fleet knows", async () => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    const config = fleetConfig.parse({
      address: "http://127.0.0.1:3100",
      secret: "0123456789abcdef0123456789abcdef",
      file: join(directory, "fleet.sqlite"),
    });
    const clock = fakeClock();
    const run = async (action: string, ...args: readonly string[]): Promise<readonly string[]> => {
      const printed: string[] = [];
      const context = {
        config,
        clock,
        dataDir: () => directory,
        server: () => assert.fail("it speaks to no server"),
        whileStopped: () => assert.fail("it stops no server"),
        print: (line: string) => void printed.push(line),
        printTable: (_: unknown, rows: readonly (readonly string[])[]) =>
          void printed.push(...rows.map((row) => row.slice(0, 2).join(" "))),
      };
      await runVerb(plugin, ["fleet", action, ...args], context);
      return printed;
    };
    try {
      const node = { identity: "a", address: config.address, version: "0.1.0", joinedAtMs: 0 };
      await withStore({ config, clock }, async (store) => {
        await store.commit([], [{ put: `${NODES}a`, value: nodeText("a", node, new FleetSecrets(config)) }]);
        await setCordon(store, "formerly", true);
      });
      // Of somebody else, with a time that is no date.
      const odd = JSON.stringify({ ...node, joinedAtMs: 1e300 });
      await withStore({ config, clock }, (store) => store.commit([], [{ put: `${NODES}odd`, value: odd }]));
      assert.deepEqual(await run("status"), ["a member", "odd unproven"]);
      await withStore({ config, clock }, (store) => store.commit([], [{ delete: `${NODES}odd` }]));
      for (const action of ["cordon", "uncordon", "drain", "remove"])
        await assert.rejects(
          run(action, "b"),
          /the fleet has no server 'b'; coppice fleet status lists them/,
        );
      assert.deepEqual(await run("drain", "a"), ["'a' has no sandboxes and gets no new ones"]);
      assert.deepEqual(await run("status"), ["a cordoned"]);
      assert.deepEqual(await run("uncordon", "a"), ["'a' gets new sandboxes again"]);
      // One that somebody else wrote has no lease, and is told apart.
      const forged = nodeText(
        "evil",
        { ...node, identity: "evil" },
        new FleetSecrets({ secret: "e".repeat(32) }),
      );
      await withStore({ config, clock }, (store) =>
        store.commit([], [{ put: `${NODES}evil`, value: forged }]),
      );
      assert.deepEqual(await run("status"), ["a member", "evil unproven"]);
      assert.deepEqual(await run("remove", "evil"), ["'evil' is no part of the fleet any more"]);
      await assert.rejects(run("remove", "a"), /'a' is a member: stop it first/);
      assert.deepEqual(await run("remove", "formerly"), ["'formerly' is no part of the fleet any more"]);
      await assert.rejects(run("uncordon", "formerly"), /the fleet has no server/);
    } finally {
      await rm(directory, { recursive: true });
    }
  });
});
