import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type IncomingMessage, request as send } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";
import { definePlugin, Peers, requestOf, SandboxError, SCOPES, systemClock } from "@coppice/core";
import { freePort, startTestServer, type TestServer } from "@coppice/core/testing";
import { fleetConfig } from "./fleet-config.js";
import { NODES, nodeText } from "./membership/node-record.js";
import { plugin as fleet } from "./plugin.js";
import type { FleetStore } from "./store/fleet-store.js";
import { openStore } from "./store/open-store.js";
import { type CountingRelay, startCountingRelay } from "./testing/counting-relay.js";
import { FleetSecrets } from "./trust/fleet-secrets.js";

const LOOPBACK = "127.0.0.1";
const SECRET = "5eed".repeat(16);
const NEXT = "beef".repeat(16);
/** What `a` has. */
const THING = "/things/one";
const PREFIX = "coppice-fleet-";

/** An API whose keys are names of tenants, and which says who was served where. */
const api = (node: string) =>
  definePlugin({
    name: "api-of-tests",
    requires: { peers: Peers },
    setup(context, { peers }) {
      context.guard("api", ({ headers }) => {
        const tenant = headers["x-tenant"];
        if (typeof tenant !== "string") throw new SandboxError("credential_missing", "no key");
        return { tenant, name: "key", scopes: new Set(SCOPES) };
      });
      const router = context.http("api");
      peers.hold({
        kind: "thing",
        surface: "api",
        inPath: (path) => /^\/things\/(\w+)$/.exec(path)?.[1],
        has: (name) => node === "a" && name === "one",
      });
      router.get("/things/:name", (ctx) => {
        ctx.body = { node, method: ctx.method, tenant: requestOf(ctx).principal?.tenant };
      });
      router.get("/list", async (ctx) => {
        const { answers, unreached } = await peers.gather(ctx);
        ctx.body = { answers: answers.length, unreached };
      });
    },
  });

interface MemberOptions {
  readonly node: string;
  readonly directory: string;
  readonly port?: number;
  readonly secret?: string;
  readonly previousSecrets?: readonly string[];
  readonly maxAnswer?: string;
  /** Where others reach it, when not at its own listener. */
  readonly address?: string;
}

async function startMember({ node, directory, port, secret = SECRET, ...more }: MemberOptions) {
  const own = port ?? (await freePort());
  return startTestServer({
    dataDir: join(directory, node),
    server: { listeners: { api: { host: LOOPBACK, port: 0 }, fleet: { host: LOOPBACK, port: own } } },
    plugins: [
      [api(node)],
      [
        fleet,
        {
          node,
          secret,
          address: `http://${LOOPBACK}:${own}`,
          file: join(directory, "fleet.sqlite"),
          lease: "600s",
          ...more,
        },
      ],
    ],
  });
}

/** Uses the fleet's store as somebody who is none of its servers. */
async function withStore<T>(directory: string, use: (store: FleetStore) => Promise<T>): Promise<T> {
  const file = join(directory, "fleet.sqlite");
  const config = fleetConfig.parse({ address: "http://127.0.0.1:1", secret: "0".repeat(32), file });
  const store = openStore(config, systemClock);
  try {
    return await use(store);
  } finally {
    await store.close();
  }
}

const ask = async (
  server: TestServer,
  path: string,
  headers: Record<string, string> = { "x-tenant": "acme" },
) => {
  const answer = await fetch(server.url + path, { headers });
  return { status: answer.status, body: await answer.json() };
};

/** A request as another server has sent it. */
interface Captured {
  readonly method: string;
  readonly path: string;
  /** Names and values in turn. */
  readonly headers: readonly string[];
}

function capturedIn(text: string): readonly Captured[] {
  return [...text.matchAll(/(GET|POST) (\S+) HTTP\/1\.1\r\n((?:[^\r]+\r\n)+)\r\n/g)].map(
    ([, method = "", path = "", lines = ""]) => ({
      method,
      path,
      headers: lines
        .trimEnd()
        .split("\r\n")
        .flatMap((line) => /^([^:]+): ?(.*)$/.exec(line)?.slice(1) ?? []),
    }),
  );
}

async function replay(url: string, { method, path, headers }: Captured): Promise<number> {
  const { hostname, port } = new URL(url);
  const sent = send({ hostname, port, method, path, headers: [...headers], setHost: false, agent: false });
  const [answer] = (await once(sent.end(), "response")) as [IncomingMessage];
  answer.resume();
  return answer.statusCode ?? 0;
}

const changed = (captured: Captured, name: string, value: string | undefined): Captured => {
  const at = captured.headers.indexOf(PREFIX + name);
  assert.ok(at >= 0, `${name} was not sent`);
  const headers = captured.headers.toSpliced(at, 2, ...(value === undefined ? [] : [PREFIX + name, value]));
  return { ...captured, headers };
};

describe("a fleet with somebody hostile between or among its servers", () => {
  let directory: string;
  let a: TestServer;
  let b: TestServer;
  let tap: CountingRelay;
  let heard = "";

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    const port = await freePort();
    tap = await startCountingRelay(
      `http://${LOOPBACK}:${port}`,
      (bytes) => (heard += bytes.toString("latin1")),
    );
    a = await startMember({ node: "a", directory, port, address: tap.url });
    b = await startMember({ node: "b", directory });
  });
  after(async () => {
    for (const server of [a, b]) await server.stop();
    await tap[Symbol.asyncDispose]();
    await rm(directory, { recursive: true });
  });

  /** What `b` sends to `a` for a client. */
  const capture = async (path: string): Promise<Captured> => {
    heard = "";
    const { status } = await ask(b, path);
    assert.equal(status, 200, path);
    const captured = capturedIn(heard).findLast((one) => one.path === path);
    assert.ok(captured, heard);
    return captured;
  };

  it("never sends the secret, and serves nothing that it has served before, elsewhere or in another form", async () => {
    const { fleet: atA = "" } = a.urls;
    const { fleet: atB = "" } = b.urls;
    for (const path of [THING, "/list"]) {
      const captured = await capture(path);
      assert.ok(!heard.includes(SECRET));
      assert.equal(await replay(atA, captured), 401, `${path} again`);
      assert.equal(await replay(atB, captured), 401, `${path} at another server`);
      const [, name = "", run = "", sender = "", , mac = ""] =
        /^([^.]+)\.([^.]+)\.([^.]+)\.(\d+)\.(.+)$/.exec(
          captured.headers[captured.headers.indexOf(`${PREFIX}proof`) + 1] ?? "",
        ) ?? [];
      const principal = Buffer.from(
        JSON.stringify({ tenant: "other", name: "key", scopes: ["admin"] }),
      ).toString("base64url");
      for (const forged of [
        changed(captured, "proof", `${name}.${run}.${sender}.9999.${mac}`),
        changed(captured, "proof", undefined),
        changed(captured, "proof", SECRET),
        changed(captured, "principal", principal),
        changed(captured, "principal", undefined),
        changed(captured, "listener", "ops"),
        { ...captured, path: `${path}?all=1` },
        { ...captured, path: "/offers" },
        { ...captured, method: "DELETE" },
      ])
        assert.equal(await replay(atA, forged), 401, JSON.stringify(forged));
    }
  });

  it("takes no word of the fleet from a client", async () => {
    const captured = await capture(THING);
    const forged = Object.fromEntries(
      captured.headers.flatMap((name, at) =>
        name.startsWith(PREFIX) ? [[name, captured.headers[at + 1] ?? ""]] : [],
      ),
    );
    assert.equal(Object.keys(forged).length, 3);
    for (const server of [a, b]) {
      assert.equal((await ask(server, THING, forged)).status, 401);
      const { body } = await ask(server, THING, { ...forged, "x-tenant": "other" });
      assert.deepEqual(body, { node: "a", method: "GET", tenant: "other" });
    }
  });

  it("sends nothing to a server that does not prove the secret, and goes on without it", async (t) => {
    const asked: string[] = [];
    const evil = createServer((message, response) => {
      asked.push(`${message.method} ${message.url} ${JSON.stringify(message.headers)}`);
      response.end("{}");
    }).listen(0, LOOPBACK);
    t.after(() => evil.close());
    await once(evil, "listening");
    const address = `http://${LOOPBACK}:${(evil.address() as AddressInfo).port}`;
    const facts = { identity: "evil", run: "run", address, version: "0.1.0", joinedAtMs: 1 };
    const genuine = await withStore(directory, async (store) => (await store.get(`${NODES}a`))?.value ?? "");
    const { proofs } = JSON.parse(genuine) as { readonly proofs: object };
    for (const value of [
      JSON.stringify(facts),
      JSON.stringify({ ...facts, proofs }),
      // Of a server of the fleet, under another name.
      genuine,
      JSON.stringify({ ...(JSON.parse(genuine) as object), address }),
      nodeText("evil", facts, new FleetSecrets({ secret: "e".repeat(32) })),
    ]) {
      // That one is away is told once the view has both.
      const away = nodeText("away", { ...facts, stoppedAtMs: 1 }, new FleetSecrets({ secret: SECRET }));
      const put = [
        { put: `${NODES}evil`, value },
        { put: `${NODES}away`, value: away },
      ];
      await withStore(directory, (store) => store.commit([], put));
      await reachedBy(b, 1, ["away"]);
      assert.equal((await ask(b, THING)).status, 200);
      await withStore(directory, (store) => store.commit([], [{ delete: `${NODES}away` }]));
      await reachedBy(b, 1);
    }
    // Also under the name of a server that had the place.
    await withStore(directory, (store) =>
      store.commit(
        [],
        [
          { delete: `${NODES}evil` },
          { put: `${NODES}a`, value: JSON.stringify({ ...(JSON.parse(genuine) as object), address }) },
        ],
      ),
    );
    let answer = await ask(b, THING);
    for (let tries = 0; tries < 100 && answer.status === 200; tries += 1) {
      await pause(20);
      answer = await ask(b, THING);
    }
    assert.equal(answer.status, 503, JSON.stringify(answer));
    assert.deepEqual(asked, []);
  });
});

it("reads no more of another server's answer than is allowed, also of one that has the secret", async (t) => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
  t.after(() => rm(directory, { recursive: true }));
  let sent = 0;
  const endless = createServer((_, response) => {
    const piece = Buffer.alloc(2 ** 16, " ");
    const more = (): void => {
      do sent += piece.length;
      while (response.write(piece));
    };
    response.on("drain", more);
    more();
  }).listen(0, LOOPBACK);
  await once(endless, "listening");
  t.after(() => endless.close());
  const address = `http://${LOOPBACK}:${(endless.address() as AddressInfo).port}`;
  const facts = { identity: "endless", run: "run", address, version: "0.1.0", joinedAtMs: 1 };
  const server = await startMember({ node: "b", directory, maxAnswer: "1MiB" });
  t.after(() => server.stop());
  const value = nodeText("endless", facts, new FleetSecrets({ secret: SECRET }));
  await withStore(directory, (store) => store.commit([], [{ put: `${NODES}endless`, value }]));
  await reachedBy(server, 0, ["endless"]);
  // What the system holds of a connection is sent as well.
  assert.ok(sent > 2 ** 20 && sent < 2 ** 24, `${sent} bytes`);
});

/** Resolves when a server reaches so many others, and misses these: it hears of a start a moment later. */
async function reachedBy(
  server: TestServer,
  answers: number,
  unreached: readonly string[] = [],
): Promise<void> {
  let body: unknown;
  for (let tries = 0; tries < 100; tries += 1) {
    ({ body } = await ask(server, "/list"));
    if (isDeepStrictEqual(body, { answers, unreached })) return;
    await pause(20);
  }
  assert.fail(JSON.stringify(body));
}

it("a fleet's secret is changed on one server after the other, and all reach each other meanwhile", async () => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
  const servers = new Map<string, TestServer>();
  const restart = async (node: string, secrets: Pick<MemberOptions, "secret" | "previousSecrets">) => {
    await servers.get(node)?.stop();
    servers.set(node, await startMember({ node, directory, ...secrets }));
  };
  const reach = async (expected: number): Promise<void> => {
    for (const server of servers.values()) await reachedBy(server, expected);
  };
  try {
    for (const node of ["a", "b", "c"]) await restart(node, { secret: SECRET });
    await reach(2);
    for (const secrets of [{ secret: NEXT, previousSecrets: [SECRET] }, { secret: NEXT }])
      for (const node of ["a", "b", "c"]) {
        await restart(node, secrets);
        await reach(2);
      }
    // One that has missed the change is none of them.
    await restart("a", { secret: SECRET });
    for (const server of servers.values()) {
      await reachedBy(server, server === servers.get("a") ? 0 : 1);
    }
  } finally {
    for (const server of servers.values()) await server.stop();
    await rm(directory, { recursive: true });
  }
});
