import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { type Clock, definePlugin, type Finding, systemClock } from "@coppice/core";
import { freePort, startTestServer, type TestServer } from "@coppice/core/testing";
import { fleetConfig } from "../fleet-config.js";
import { NODES, nodeText } from "../membership/node-record.js";
import { plugin } from "../plugin.js";
import { FleetSecrets } from "../trust/fleet-secrets.js";
import { peerConnections } from "../routing/http-peer.js";
import { openStore } from "../store/open-store.js";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "../testing/start-etcd.js";
import { type ExamineFleetOptions, examineFleet } from "./examine-fleet.js";

const SECRET = "5eed".repeat(16);
const LOOPBACK = "127.0.0.1";
const LEASE_MS = 600_000;
const secrets = new FleetSecrets({ secret: SECRET });

const routes = definePlugin({
  name: "routes",
  setup: (context) => void context.http("api").get("/open", (ctx) => void (ctx.body = "open")),
});

async function startMember(node: string, store: object, clock: Clock = systemClock): Promise<TestServer> {
  const port = await freePort();
  const listeners = { api: { host: LOOPBACK, port: 0 }, fleet: { host: LOOPBACK, port } };
  const address = `http://${LOOPBACK}:${port}`;
  const settings = { node, address, secret: SECRET, lease: `${LEASE_MS}ms`, ...store };
  return startTestServer({ server: { listeners }, clock, plugins: [[routes], [plugin, settings]] });
}

async function examine(
  store: object,
  overrides: Partial<ExamineFleetOptions> & { readonly records?: Readonly<Record<string, string>> } = {},
): Promise<readonly Finding[]> {
  const config = fleetConfig.parse({ address: "http://127.0.0.1:1", secret: SECRET, ...store });
  const opened = openStore(config, systemClock);
  using connections = peerConnections({ maxAnswer: 1024 });
  try {
    for (const [node, address] of Object.entries(overrides.records ?? {})) {
      const facts = { identity: node, address, version: "1", joinedAtMs: 0 };
      const value = nodeText(node, facts, secrets);
      await opened.commit([], [{ put: NODES + node, value }]);
    }
    const { signal } = new AbortController();
    const common = {
      store: opened,
      secrets,
      connections,
      connectMs: 1000,
      clock: systemClock,
      signal,
    };
    return await examineFleet({ ...common, leaseMs: LEASE_MS, ...overrides });
  } finally {
    await opened.close();
  }
}

const about = (findings: readonly Finding[], text: string): string => {
  const found = findings.find(({ message }) => message.includes(text));
  return found === undefined ? `nothing about ${text}` : `${found.severity} ${found.message} -> ${found.fix}`;
};

describe("coppice doctor of a server of a fleet", () => {
  it("compares clocks and secrets, and names servers that cannot be reached, each with a remedy", async () => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    const store = { file: join(directory, "fleet.sqlite") };
    const ahead: Clock = { ...systemClock, now: () => Date.now() + 5000 };
    const other = createServer((_, response) => response.writeHead(404).end()).listen(0, LOOPBACK);
    await once(other, "listening");
    try {
      await using _right = await startMember("right", store);
      await using _late = await startMember("ahead", store, ahead);
      const { port } = other.address() as { readonly port: number };
      const records = {
        "nowhere": `http://${LOOPBACK}:${await freePort()}`,
        "other-program": `http://${LOOPBACK}:${port}`,
        "not-tls": `https://${LOOPBACK}:${port}`,
      };
      const findings = await examine(store, { records });
      assert.match(about(findings, "'right'"), /^ok .* its clock agrees/);
      assert.match(about(findings, "'ahead'"), /^warn the clock of .* 5\.\d s ahead of this one -> .*NTP/);
      assert.match(
        about(findings, "'nowhere'"),
        /^fail .*cannot be reached: .*ECONNREFUSED.* -> .*fleet\.address/,
      );
      assert.match(about(findings, "'other-program'"), /^fail .*answered 404 -> /);
      assert.match(
        about(findings, "'not-tls'"),
        /^fail .*certificate or a protocol.*wrong version.* -> .*fleet\.ca/,
      );
      assert.match(about(findings, "the store reads"), /^ok .*p99 .*writes in/);
      const strangers = await examine(store, {
        secrets: new FleetSecrets({ secret: "another secret of 32 characters or more" }),
      });
      assert.match(about(strangers, "'right'"), /^fail .*proven by none .* -> .*fleet\.secret/);
      const busy = await examine(store, { leaseMs: 0.001 });
      assert.match(about(busy, "the store reads"), /^warn .*slow for a lease/);
    } finally {
      other.close();
      await rm(directory, { recursive: true });
    }
  });

  describe("with etcd", { skip: reasonWithoutEtcd() }, () => {
    it("tells the version of each member, and of those that do not answer", async () => {
      const etcd: Cluster = await startEtcd();
      const silent = `http://${LOOPBACK}:${await freePort()}`;
      const store = { etcd: { endpoints: [...etcd.endpoints, silent] } };
      try {
        const findings = await examine(store);
        assert.match(about(findings, etcd.endpoints[0] ?? ""), /^(ok|warn) etcd 3\.\d+\.\d+ at /);
        assert.match(about(findings, silent), /^warn .*does not answer: .*ECONNREFUSED.* -> .*endpoints/);
      } finally {
        await etcd[Symbol.asyncDispose]();
      }
      const gone = await examine(store);
      assert.match(about(gone, "cannot be reached"), /^fail .*ECONNREFUSED.* -> .*etcd/);
    });
  });
});
