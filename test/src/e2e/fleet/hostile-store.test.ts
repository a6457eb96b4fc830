import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "@coppice/plugin-fleet/testing";
import { makeFleetInstallations } from "../../harness/server/fleet-installations.js";
import { IdentityProvider } from "../../harness/server/identity-provider.js";
import { type Installation, ServerProcess } from "../../harness/server/server-process.js";
import { LONGEST_STALL, slowness } from "../../harness/server/stall-meter.js";

const METER = import.meta.resolve("../../harness/server/stall-meter.js");
const PRELOADED = { NODE_OPTIONS: `--import=${METER}` };
const PREFIX = "/coppice/";
const MIB = 2 ** 20;
/** On a machine that `slowness` calls 1. */
const MOST_TURN_MS = 20;
/** Changes of one commit. */
const BATCH = 100;
/** A value that etcd just takes. */
const HUGE = MIB;

interface Made {
  readonly id: string;
  readonly token: string;
}

type Pairs = readonly (readonly [key: string, value: string])[];

/** What somebody puts who can write to the store, and is none of its servers. */
interface HostileRecords {
  readonly name: string;
  readonly pairs: (known: { readonly sandbox: string }) => Pairs;
}

const KINDS = ["nodes/", "sandboxes/", "templates/", "cordons/", "untold/", "records/webhooks/x/"];
const under = (name: string, value: string): Pairs => KINDS.map((kind) => [kind + name, value]);
const NODE = { identity: "evil", run: "run", address: "http://127.0.0.1:1", version: "9", joinedAtMs: 1 };
const SANDBOX = { node: "node0", tenant: "acme", template: "base", backend: "b", startedAtMs: 1 };
const nested = (depth: number): string => `${"[".repeat(depth)}${"]".repeat(depth)}`;
const withMore = (record: object, name: string, json: string): string =>
  `${JSON.stringify(record).slice(0, -1)},${JSON.stringify(name)}:${json}}`;

const HOSTILE: readonly HostileRecords[] = [
  {
    name: "no JSON, and JSON of other types",
    pairs: () =>
      [
        "",
        "{",
        "\0",
        "null",
        "[]",
        "1e999",
        '"text"',
        '{"node":{},"tenant":[]}',
        '{"identity":1,"proofs":[]}',
      ].flatMap((value, index) => under(`other${index}`, value)),
  },
  {
    name: "keys of prototypes",
    pairs: () => [
      ...under("__proto__", JSON.stringify(SANDBOX)),
      ...under("hasOwnProperty", withMore(SANDBOX, "__proto__", '{"lostAtMs":1}')),
      ["nodes/valueOf", withMore(NODE, "proofs", '{"__proto__":"x","constructor":"y"}')],
      ["nodes/toString", JSON.stringify(NODE)],
    ],
  },
  { name: "values of a megabyte that are no JSON", pairs: () => under("huge", "x".repeat(HUGE)) },
  {
    name: "records with a text of a megabyte",
    pairs: () => [
      ["nodes/text", JSON.stringify({ ...NODE, address: `http://${"x".repeat(HUGE)}` })],
      ["sandboxes/text0", JSON.stringify({ ...SANDBOX, tenant: "x".repeat(HUGE) })],
      ["sandboxes/text1", JSON.stringify({ ...SANDBOX, node: "x".repeat(HUGE) })],
      ["sandboxes/text2", JSON.stringify({ ...SANDBOX, node: "gone", template: "x".repeat(HUGE) })],
      ["sandboxes/text3", JSON.stringify({ ...SANDBOX, node: "gone", backend: "x".repeat(HUGE) })],
      ["templates/text", JSON.stringify({ node: "node0", template: "x".repeat(HUGE) })],
      ["templates/gone", JSON.stringify({ node: "gone", template: "x".repeat(HUGE) })],
    ],
  },
  {
    name: "values that nest very deep",
    pairs: () => [
      ["nodes/deep", withMore(NODE, "more", nested(HUGE / 2))],
      ["nodes/deep2", nested(HUGE / 2)],
      ["sandboxes/deep", withMore(SANDBOX, "more", nested(HUGE / 2))],
      ["templates/deep", withMore({ node: "node0" }, "more", nested(HUGE / 2))],
    ],
  },
  {
    name: "records of very many values",
    pairs: () => [
      ["nodes/many", withMore(NODE, "more", `[${"[],".repeat(HUGE / 3)}1]`)],
      [
        "nodes/names",
        withMore(NODE, "proofs", `{${Array.from({ length: HUGE / 16 }, (_, at) => `"${at}":""`).join(",")}}`),
      ],
      ["sandboxes/many", withMore(SANDBOX, "more", `[${"{},".repeat(HUGE / 3)}1]`)],
      ["templates/many", withMore({ node: "node0" }, "more", `[${"{},".repeat(HUGE / 3)}1]`)],
    ],
  },
  {
    name: "names of half a megabyte, of sandboxes of a server and of a server that is gone",
    pairs: () =>
      ["a", "b", "c"].flatMap((name): Pairs => [
        [`sandboxes/${name.repeat(HUGE / 2)}`, JSON.stringify(SANDBOX)],
        [`sandboxes/${name.repeat(HUGE / 2)}x`, JSON.stringify({ ...SANDBOX, node: "gone" })],
        [`nodes/${name.repeat(HUGE / 2)}`, JSON.stringify(NODE)],
      ]),
  },
  {
    name: "names with slashes, controls and other alphabets",
    pairs: () =>
      ["../nodes/node0", "a/b/c", "", "\u0000\u001b[2J", "ä".repeat(100), "%2e%2e%2f", "a b\r\nc"].flatMap(
        (name) => under(name, JSON.stringify(SANDBOX)),
      ),
  },
  {
    name: "2 000 sandboxes of a server that does not have them",
    pairs: () => Array.from({ length: 2000 }, (_, at) => [`sandboxes/own${at}`, JSON.stringify(SANDBOX)]),
  },
  {
    name: "2 000 sandboxes of servers that are none",
    pairs: () =>
      Array.from({ length: 2000 }, (_, at) => [
        `sandboxes/gone${at}`,
        JSON.stringify({ ...SANDBOX, node: `gone${at % 5}` }),
      ]),
  },
  {
    name: "2 000 servers, templates and webhooks",
    pairs: () =>
      ["nodes/", "templates/", "records/webhooks/x/"].flatMap((kind) =>
        Array.from({ length: 2000 }, (_, at): Pairs[number] => [`${kind}many${at}`, JSON.stringify(NODE)]),
      ),
  },
  {
    name: "24 values of a megabyte each",
    pairs: () =>
      Array.from({ length: 24 }, (_, at) => [
        `sandboxes/big${at}`,
        JSON.stringify({ ...SANDBOX, more: "x".repeat(HUGE) }),
      ]),
  },
  {
    name: "a record that gives a sandbox to another tenant",
    pairs: ({ sandbox }) => [[`sandboxes/${sandbox}`, JSON.stringify({ ...SANDBOX, tenant: "evil" })]],
  },
];

describe(
  "a fleet whose store somebody else writes to",
  { skip: reasonWithoutEtcd(), timeout: 500_000 },
  () => {
    let etcd: Cluster;
    let provider: IdentityProvider;
    let installations: readonly Installation[];
    const servers: ServerProcess[] = [];
    /** Of `acme`, at each server. */
    let sandboxes: readonly Made[];

    const base64 = (text: string): string => Buffer.from(text).toString("base64");
    const inEtcd = async (path: string, body: object): Promise<unknown> => {
      const answer = await fetch(`${etcd.endpoints[0]}/v3/${path}`, {
        method: "POST",
        body: JSON.stringify(body),
      });
      const text = await answer.text();
      assert.equal(answer.status, 200, text.slice(0, 300));
      return JSON.parse(text);
    };
    const put = async (pairs: Pairs): Promise<void> => {
      const puts = pairs.map(([key, value]) => ({
        requestPut: { key: base64(PREFIX + key), value: base64(value) },
      }));
      // Large ones by themselves: a request of etcd has 1.5 MiB at most.
      const size = pairs.some(([key, value]) => key.length + value.length > 10_000) ? 1 : BATCH;
      for (let at = 0; at < puts.length; at += size)
        await inEtcd("kv/txn", { success: puts.slice(at, at + size) });
    };
    const ask = async (index: number, tenant: string, path: string, method = "GET", body?: object) => {
      const answer = await fetch((servers[index]?.url ?? "") + path, {
        method,
        headers: {
          authorization: `Bearer ${provider.token({ org_id: tenant })}`,
          ...(body && { "content-type": "application/json" }),
        },
        signal: AbortSignal.timeout(20_000),
        ...(body && { body: JSON.stringify(body) }),
      });
      return { status: answer.status, text: await answer.text() };
    };
    const inSandbox = (index: number, { id, token }: Made, init: RequestInit = {}): Promise<Response> =>
      fetch(`${servers[index]?.url}/files?path=own&username=user`, {
        ...init,
        headers: {
          "e2b-sandbox-id": id,
          "e2b-sandbox-port": "49983",
          "x-access-token": token,
          ...(init.body && { "content-type": "application/octet-stream" }),
        },
        signal: AbortSignal.timeout(20_000),
      });
    const listed = async (index: number, tenant: string): Promise<string> => {
      const { text } = await ask(index, tenant, "/v2/sandboxes");
      const found = JSON.parse(text) as readonly { readonly sandboxID: string }[];
      return found
        .map(({ sandboxID }) => sandboxID)
        .toSorted()
        .join(" ");
    };
    const create = async (index: number, tenant: string) => {
      const { status, text } = await ask(index, tenant, "/v2/sandboxes", "POST", {
        templateID: "base",
        timeout: 600,
      });
      assert.equal(status, 201, text);
      const { sandboxID: id, envdAccessToken: token } = JSON.parse(text) as Readonly<Record<string, string>>;
      assert.ok(id && token);
      const written = await inSandbox(index, { id, token }, { method: "POST", body: id });
      assert.equal(written.status, 200, await written.text());
      return { id, token };
    };

    before(async () => {
      etcd = await startEtcd();
      provider = await IdentityProvider.open();
      installations = await makeFleetInstallations({
        count: 3,
        fleet: { etcd: { endpoints: etcd.endpoints, prefix: PREFIX }, lease: "6s", restart: "30s" },
        plugins: () => ({ access: { jwt: provider.settings } }),
      });
      for (const { configFile } of installations)
        servers.push(await ServerProcess.start(configFile, PRELOADED));
      // The last one is started again after each: it has none meanwhile.
      await put([["cordons/node2", "true"]]);
      sandboxes = await Promise.all([0, 1, 1].map((index) => create(index, "acme")));
    });
    after(async () => {
      for (const server of servers) await server.stop();
      for (const installation of installations) await installation.remove();
      await provider[Symbol.asyncDispose]();
      await etcd[Symbol.asyncDispose]();
    });

    /** Every server serves every sandbox to its tenant, and none to another one; new ones are made and end. */
    const isSound = async (): Promise<void> => {
      const all = sandboxes
        .map(({ id }) => id)
        .toSorted()
        .join(" ");
      for (const index of servers.keys()) {
        await eventually(`node${index} lists all`, async () => (await listed(index, "acme")) === all);
        assert.equal(await listed(index, "evil"), "");
        for (const { id, token } of sandboxes) {
          const answer = await inSandbox(index, { id, token });
          assert.equal(await answer.text(), id, `by node${index}`);
          for (const [method, path] of [
            ["GET", ""],
            ["DELETE", ""],
            ["POST", "/pause"],
          ] as const)
            assert.equal((await ask(index, "evil", `/sandboxes/${id}${path}`, method)).status, 404);
        }
        const { id } = await create(index, "acme");
        const startedAt = performance.now();
        assert.equal((await ask(index, "acme", `/sandboxes/${id}`, "DELETE")).status, 204);
        assert.ok(performance.now() - startedAt < 900, "the fleet is not told of ends any more");
      }
    };

    for (const { name, pairs: make } of HOSTILE)
      it(`goes on with ${name}`, async (t) => {
        for (const server of servers) await server.ask(LONGEST_STALL);
        const before = slowness();
        await put(make({ sandbox: sandboxes[0]?.id ?? "" }));
        await isSound();
        const turns = await Promise.all(servers.map((server) => server.ask(LONGEST_STALL)));
        const mostMs = MOST_TURN_MS * Math.max(before, slowness());
        t.diagnostic(`longest turns: ${turns.join(", ")} of ${mostMs} ms`);
        // A collection of garbage may take that long, at one of them.
        assert.ok(turns.filter((turn) => Number(turn) <= mostMs).length >= 2, turns.join(", "));
      });

    it("has a server that starts, and reads all of this", async () => {
      await servers[2]?.stop();
      servers[2] = await ServerProcess.start(installations[2]?.configFile ?? "", PRELOADED);
      await isSound();
    });

    it("has a server back whose record is removed or replaced, or whose lease ends", async () => {
      const key = base64(`${PREFIX}nodes/node2`);
      const record = async () => {
        const { kvs } = (await inEtcd("kv/range", { key })) as {
          readonly kvs?: readonly {
            readonly value: string;
            readonly lease: string;
            readonly mod_revision: string;
          }[];
        };
        return kvs?.[0];
      };
      const attacks: readonly ((own: {
        readonly value: string;
        readonly lease: string;
      }) => Promise<unknown>)[] = [
        () => inEtcd("kv/deleterange", { key }),
        ({ value }) => inEtcd("kv/put", { key, value }),
        ({ lease: ID }) => inEtcd("lease/revoke", { ID }),
      ];
      for (const attack of attacks) {
        const own = await eventually("its record", record);
        assert.ok(own);
        await attack(own);
        await eventually("another record of it, with a lease", async () => {
          const now = await record();
          return now?.lease !== undefined && Number(now.mod_revision) > Number(own.mod_revision) + 1;
        });
        await eventually("it serves", async () => (await listed(2, "evil").catch(() => "no list")) === "");
        await isSound();
      }
    });
  },
);
