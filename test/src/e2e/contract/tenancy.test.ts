import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { promisify } from "node:util";
import type { ServedRoute } from "@coppice/core";
import type { TestServer } from "@coppice/core/testing";
import { type Answer, exchange } from "../../harness/clients/exchange.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { rawExchange } from "../../harness/clients/raw-exchange.js";
import { COPPICE } from "../../harness/server/server-process.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const run = promisify(execFile);

/** As long as a real id, so that answers have equal lengths. */
const MADE_UP = "imadeup00000000000000";

/** A client with a key and a sandbox. */
interface Client {
  readonly key: string;
  ask(method: string, path: string, body?: string): Promise<Answer>;
  createSandbox(fields?: object): Promise<{
    readonly id: string;
    readonly token: string;
    /** Traffic token of a sandbox without public traffic. */
    readonly trafficToken: string | undefined;
  }>;
}

/** Two values for a parameter of a path: one of the owner's, and one of the same form that never existed. */
type Names = Readonly<Record<string, readonly [theirs: string, madeUp: string]>>;

interface Sample {
  /**
   * Creates the resource of the route for the owner; undefined where this host's backend does not have it. Absent:
   * the route names no resource.
   */
  readonly names?: (owner: Client) => Promise<Names | undefined>;
  /** A body that the route would take, with parameters as in the path. */
  readonly body?: string;
  /** Path and query, where parameters are not in the path alone. */
  readonly path?: string;
}

const sandbox = async (owner: Client): Promise<Names> => ({
  id: [(await owner.createSandbox()).id, MADE_UP],
});

const snapshotSource = async (owner: Client): Promise<Names | undefined> => {
  const { id } = await owner.createSandbox();
  const taken = await owner.ask("POST", `/sandboxes/${id}/snapshots`, "{}");
  return taken.status === 400 ? undefined : { id: [id, MADE_UP] };
};

const snapshot = async (owner: Client): Promise<Names | undefined> => {
  const { id } = await owner.createSandbox();
  const taken = await owner.ask("POST", `/sandboxes/${id}/snapshots`, "{}");
  if (taken.status === 400) return undefined;
  assert.equal(taken.status, 201, taken.text);
  const { snapshotID } = taken.json() as { readonly snapshotID: string };
  const [name = ""] = snapshotID.split(":");
  // Of the same form, with the same last letters.
  const madeUp = snapshotID.replace(name, `${name[0]}${"0".repeat(name.length - 1)}`);
  return { id: [encodeURIComponent(snapshotID), encodeURIComponent(madeUp)] };
};

const snapshotAlias = async (owner: Client): Promise<Names | undefined> => {
  const { id: alias } = (await snapshot(owner)) ?? {};
  return alias && { alias };
};

const volume = async (owner: Client): Promise<Names | undefined> => {
  const made = await owner.ask(
    "POST",
    "/volumes",
    JSON.stringify({ name: `v${Math.random()}`.replace(".", "_") }),
  );
  if (made.status === 400) return undefined;
  assert.equal(made.status, 201, made.text);
  const { volumeID } = made.json() as { readonly volumeID: string };
  return { id: [volumeID, `v${"0".repeat(volumeID.length - 1)}`] };
};

const webhook = async (owner: Client): Promise<Names> => {
  const wish = { url: "https://hooks.example/x", events: ["sandbox.lifecycle.created"] };
  const made = await owner.ask("POST", "/events/webhooks", JSON.stringify(wish));
  assert.equal(made.status, 201, made.text);
  const { id } = made.json() as { readonly id: string };
  return { id: [id, id.replace(/^.{8}/, "00000000")] };
};

/** A webhook and a waiting delivery, which cannot be repeated. */
const delivery = async (owner: Client): Promise<Names> => {
  const { id } = await webhook(owner);
  await owner.createSandbox();
  const list = await owner.ask("GET", `/events/webhooks/${id?.[0]}/deliveries`);
  const [first] = list.json() as { readonly id: string }[];
  assert.ok(id && first, list.text);
  return { id, delivery: [first.id, first.id.replace(/^.{8}/, "00000000")] };
};

/** A sandbox by the name that its owner gave it. */
const namedSandbox = async (owner: Client): Promise<Names> => {
  const name = `n${Math.random()}`.replace(".", "-");
  const made = await owner.ask("POST", "/v1/sandboxes", JSON.stringify({ image: "base", name }));
  assert.equal(made.status, 201, made.text);
  return { id: [name, `n0-${"0".repeat(name.length - 3)}`] };
};

const oneShotRun = async (owner: Client): Promise<Names> => {
  const started = await owner.ask("POST", "/v1/one-shot-runs?detach=true", '{"argv":["/bin/sleep","60"]}');
  assert.equal(started.status, 202, started.text);
  const { run_id: id } = started.json() as { readonly run_id: string };
  return { id: [id, id.replace(/^.{8}/, "00000000")] };
};

/** A template that has been asked for, with its build. */
const template = async (owner: Client): Promise<Names | undefined> => {
  const name = `n${Math.random()}`.replace(".", "-");
  const asked = await owner.ask("POST", "/v3/templates", JSON.stringify({ name }));
  if (asked.status === 400) return undefined;
  assert.equal(asked.status, 202, asked.text);
  const { templateID: id, buildID: build } = asked.json() as {
    readonly templateID: string;
    readonly buildID: string;
  };
  return {
    id: [id, "0".repeat(id.length)],
    name: [name, `n0-${"0".repeat(name.length - 3)}`],
    build: [build, build.replace(/^.{8}/, "00000000")],
    hash: ["0".repeat(64), "0".repeat(64)],
  };
};

/** A sandbox and a command in it. */
const command = async (owner: Client): Promise<Names> => {
  const { id } = await owner.createSandbox();
  const path = `/v1/sandboxes/${id}/commands`;
  const started = await owner.ask("POST", path, '{"argv":["/bin/sleep","60"]}');
  assert.equal(started.status, 201, started.text);
  const { command_id: cid } = started.json() as { readonly command_id: string };
  return { id: [id, MADE_UP], cid: [cid, cid.replace(/^.{8}/, "00000000")] };
};

/**
 * A sample request for every route that requires a key, addressed to a resource of another tenant. A route without an
 * entry fails the test: add one whose parameters name resources of the owner.
 */
const SAMPLES: Readonly<Record<string, Sample>> = {
  "GET /health": {},
  "GET /auth/whoami": {},
  "GET /audit/events": { path: "/audit/events?tenantID=acme" },
  // The timeout is longer than the test, so that no sandbox ends during it.
  "POST /sandboxes": { body: '{"templateID":"base","timeout":300}' },
  "POST /v2/sandboxes": { body: '{"templateID":"base"}' },
  "GET /sandboxes": { path: "/sandboxes?metadata=of%3Dacme" },
  "GET /v2/sandboxes": { path: "/v2/sandboxes?state=running,paused" },
  "GET /sandboxes/:id": { names: sandbox },
  "DELETE /sandboxes/:id": { names: sandbox },
  "POST /sandboxes/:id/connect": { names: sandbox, body: '{"timeout":300}' },
  "POST /v2/sandboxes/:id/connect": { names: sandbox, body: "{}" },
  "POST /sandboxes/:id/pause": { names: sandbox },
  "POST /sandboxes/:id/resume": { names: sandbox, body: '{"timeout":300}' },
  "POST /sandboxes/:id/timeout": { names: sandbox, body: '{"timeout":0}' },
  "POST /sandboxes/:id/refreshes": { names: sandbox, body: '{"duration":600}' },
  "PUT /sandboxes/:id/network": { names: sandbox, body: "{}" },
  "PATCH /sandboxes/:id/limits": { names: sandbox, body: '{"cpuCount":0}' },
  "GET /sandboxes/:id/metrics": { names: sandbox },
  "GET /sandboxes/metrics": { names: sandbox, path: "/sandboxes/metrics?sandbox_ids=:id" },
  "GET /sandboxes/:id/logs": { names: sandbox },
  "GET /v2/sandboxes/:id/logs": { names: sandbox },
  "POST /sandboxes/:id/snapshots": { names: sandbox, body: "{}" },
  "POST /sandboxes/:id/fork": { names: sandbox, body: '{"count":1,"timeout":300}' },
  "GET /snapshots": {},
  "DELETE /templates/:id": { names: snapshot },
  "GET /templates": {},
  "GET /v2/templates": {},
  "GET /templates/:id": { path: "/templates/base" },
  "GET /templates/aliases/:alias": { names: snapshotAlias },
  "GET /templates/:id/tags": { names: snapshot },
  "POST /v3/templates": { body: "{}" },
  "POST /v2/templates/:id/builds/:build": { names: template, body: '{"fromImage":"debian"}' },
  "POST /templates/:id/builds/:build/cancel": { names: template },
  "POST /templates/push": { names: template, body: '{"template":":name","image":"registry.example/a:1"}' },
  "GET /templates/:id/builds/:build/status": { names: template },
  "GET /templates/:id/builds/:build/logs": { names: template },
  "GET /templates/:id/files/:hash": { names: template },
  // Its link has the permission.
  "PUT /templates/uploads/:ticket": { path: "/templates/uploads/made.up" },
  "PATCH /templates/:id": { path: "/templates/base", body: '{"public":false}' },
  "PATCH /v2/templates/:id": { path: "/v2/templates/base", body: '{"public":false}' },
  "POST /templates/tags": { body: "{}" },
  "DELETE /templates/tags": {
    names: template,
    path: "/templates/tags",
    body: '{"name":":name","tags":["v1"]}',
  },
  "GET /volumes": {},
  "POST /volumes": { body: '{"name":"of-acme"}' },
  "GET /volumes/:id": { names: volume },
  "DELETE /volumes/:id": { names: volume },
  "GET /events/sandboxes": { path: "/events/sandboxes?limit=100" },
  "GET /events/sandboxes/:id": { names: sandbox },
  "GET /events/webhooks": {},
  "POST /events/webhooks": {
    body: '{"url":"https://hooks.example/x","events":["sandbox.lifecycle.killed"]}',
  },
  "GET /events/webhooks/deliveries": {},
  "GET /events/webhooks/:id": { names: webhook },
  "PATCH /events/webhooks/:id": { names: webhook, body: '{"name":"theirs"}' },
  "DELETE /events/webhooks/:id": { names: webhook },
  "GET /events/webhooks/:id/deliveries": { names: delivery },
  "POST /events/webhooks/:id/deliveries/:delivery/repeat": { names: delivery },
  "POST /sandboxes/:id/exec": { names: sandbox, body: '{"cmd":"true"}' },
  "UPGRADE /sandboxes/:id/ws": { names: sandbox },
  "GET /v1/auth/whoami": {},
  "POST /v1/sandboxes": { body: '{"image":"base"}' },
  "GET /v1/sandboxes": {},
  "GET /v1/sandboxes/:id": { names: sandbox },
  "PATCH /v1/sandboxes/:id": { names: namedSandbox, body: '{"auto_stop_minutes":1}' },
  "DELETE /v1/sandboxes/:id": { names: namedSandbox },
  "POST /v1/sandboxes/:id/stop": { names: sandbox },
  "POST /v1/sandboxes/:id/start": { names: sandbox },
  "POST /v1/sandboxes/:id/extend": { names: sandbox, body: '{"auto_delete_hours":1}' },
  "POST /v1/sandboxes/:id/files/export": { names: sandbox, body: '{"src_dir":"/tmp"}' },
  "POST /v1/sandboxes/:id/files/import": { names: sandbox, body: "" },
  "POST /v1/one-shot-runs": { body: '{"argv":["true"]}' },
  "GET /v1/one-shot-runs/:id": { names: oneShotRun },
  "GET /v1/one-shot-runs/:id/logs": { names: oneShotRun },
  "DELETE /v1/one-shot-runs/:id": { names: oneShotRun },
  "UPGRADE /v1/sandboxes/:id/sessions/:sid": {
    names: async (owner) => ({ ...(await sandbox(owner)), sid: ["main", "other"] }),
  },
  "POST /v1/sandboxes/:id/commands": { names: sandbox, body: '{"argv":["true"]}' },
  "GET /v1/sandboxes/:id/commands": { names: sandbox },
  "GET /v1/sandboxes/:id/commands/:cid": { names: command },
  "DELETE /v1/sandboxes/:id/commands/:cid": { names: command },
  "GET /v1/sandboxes/:id/commands/:cid/logs": { names: command },
};

/** Further requests for resources of another tenant. */
const MORE: readonly (readonly [route: string, Sample])[] = [
  ["GET /templates/:id", { names: template }],
  ["GET /templates/:id/tags", { names: template }],
  ["GET /templates/aliases/:alias", { names: template, path: "/templates/aliases/:name" }],
  ["DELETE /templates/:id", { names: template }],
  ["PATCH /templates/:id", { names: template, body: '{"public": false}' }],
  ["PATCH /v2/templates/:id", { names: template, body: '{"public": false}' }],
  ["GET /snapshots", { names: snapshotSource, path: "/snapshots?sandboxID=:id" }],
  [
    "POST /v2/sandboxes",
    {
      names: async (owner) => {
        const { id } = (await snapshot(owner)) ?? {};
        // Refusals call it by its name, without the tag.
        const nameOf = (text: string): string => decodeURIComponent(text).split(":")[0] ?? "";
        return id && { id: [nameOf(id[0]), nameOf(id[1])] };
      },
      body: '{"templateID":":id"}',
    },
  ],
  [
    "POST /v2/sandboxes",
    { names: volume, body: '{"templateID":"base","volumeMounts":[{"name":":id","path":"/data"}]}' },
  ],
];

/** Routes of a sandbox without a token: E2B's clients send none there. */
const OPEN: ReadonlySet<string> = new Set(["envd GET /health"]);
/** Routes whose only answer is that they are not for clients. */
const RESERVED = /^\/(init|freeze|unfreeze|collapse|fsfreeze|fsthaw|upgrade)$/;

describe("what belongs to another tenant", () => {
  let directory: string;
  let server: TestServer;
  let owner: Client;
  let stranger: Client;

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-tenancy-"));
    const dataDir = join(directory, "data");
    // Only an isolating backend has snapshots.
    const backend = missingForNamespaces() === false ? "linux-namespaces" : "local-process";
    server = await startFullServer({ backend, server: { dataDir } });
    const config = join(directory, "coppice.yaml");
    await writeFile(
      config,
      JSON.stringify({
        dataDir,
        listeners: { api: { port: 0 } },
        plugins: { "access": {}, "local-process": {} },
      }),
    );
    const keyOf = async (tenant: string): Promise<string> => {
      const options = ["--tenant", tenant, "--scopes", "admin"];
      const { stdout } = await run(process.execPath, [COPPICE, "keys", "create", config, ...options]);
      return stdout.trim();
    };
    owner = client(await keyOf("acme"));
    stranger = client(await keyOf("other"));
  });

  after(async () => {
    await server.stop();
    await rm(directory, { recursive: true, force: true });
  });

  function client(key: string): Client {
    const ask = (method: string, path: string, body?: string): Promise<Answer> =>
      exchange(server.url, {
        method,
        path,
        headers: { "x-api-key": key },
        ...(body !== undefined && { body }),
      });
    return {
      key,
      ask,
      async createSandbox(fields = {}) {
        const wanted = { templateID: "base", metadata: { of: "acme" }, ...fields };
        const made = await ask("POST", "/v2/sandboxes", JSON.stringify(wanted));
        assert.equal(made.status, 201, made.text);
        const answer = made.json() as Record<string, string>;
        const { sandboxID: id, envdAccessToken: token, trafficAccessToken: trafficToken } = answer;
        assert.ok(id && token);
        return { id, token, trafficToken };
      },
    };
  }

  /** Sends one request to a route; returns status, headers and body of the answer as one text. */
  async function answerOf(
    route: ServedRoute,
    who: Client,
    parts: { path: string; body: string | undefined },
  ) {
    if (route.kind === "upgrade") {
      const head = `GET ${parts.path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: ${who.key}\r\n`;
      const upgrade =
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
      // Accepted streams and upgrades are cut: only the beginning of the answer counts.
      return rawExchange(server.url, `${head}${upgrade}\r\n\x88\x80\0\0\0\0`, { hangUp: true });
    }
    const { status, headers, text } = await who.ask(route.method, parts.path, parts.body);
    const { "date": _date, "x-request-id": _id, ...steady } = headers;
    return JSON.stringify([status, steady, text]);
  }

  function fill(path: string, names: Names, which: 0 | 1): string {
    return path.replace(/:([A-Za-z]\w*)/g, (_, name: string) => {
      const pair = names[name];
      assert.ok(pair, `${path}: the sample names no '${name}'`);
      return pair[which];
    });
  }

  it("is answered on every route as what never was, and to its owner otherwise", async () => {
    const routes = server.routes.filter(({ surface }) => surface === "api");
    const keyOf = ({ kind, method, path }: ServedRoute): string =>
      `${kind === "upgrade" ? "UPGRADE" : method} ${path}`;
    assert.deepEqual(
      routes.map(keyOf).filter((key) => SAMPLES[key] === undefined),
      [],
      "routes without a sample: add them to SAMPLES, with what their parameters name",
    );
    const asked = [...Object.entries(SAMPLES), ...MORE].flatMap(([key, sample]) =>
      routes.filter((route) => keyOf(route) === key).map((route) => [route, sample] as const),
    );
    for (const [route, { names: make, body, path = route.path }] of asked) {
      if (make === undefined) {
        const mine = await owner.createSandbox();
        const answer = await answerOf(route, stranger, { path, body });
        assert.ok(!answer.includes(mine.id), `${keyOf(route)} tells of another's sandbox`);
        assert.ok(!path.includes(":"), `${keyOf(route)} has parameters: its sample has to name them`);
        continue;
      }
      const names = await make(owner);
      if (names === undefined) continue;
      const before = server.sandboxes.list().map(({ record }) => record);
      const ids = Object.values(names);
      // A refusal may name it without its tag.
      const told = ids
        .flat()
        .flatMap((name) => [decodeURIComponent(name), decodeURIComponent(name).split(":", 1)[0] ?? ""]);
      const anonymous = (text: string): string =>
        told.reduce((all, name) => all.replaceAll(name, "<id>"), text);
      for (const sent of new Set([body, undefined, "{", '{"timeout":-1}', '{"timeout":1e9}'])) {
        const answers: readonly string[] = await Promise.all(
          ([0, 1] as const).map(async (which) =>
            anonymous(
              await answerOf(route, stranger, {
                path: fill(path, names, which),
                body: sent && fill(sent, names, which),
              }),
            ),
          ),
        );
        const what = `${keyOf(route)} with the body ${sent}`;
        assert.equal(withoutVariance(answers[0] ?? ""), withoutVariance(answers[1] ?? ""), what);
      }
      assert.deepEqual(
        server.sandboxes.list().map(({ record }) => record),
        before,
        `${keyOf(route)} has changed what is another's`,
      );
      const refused = anonymous(
        await answerOf(route, stranger, { path: fill(path, names, 1), body: body && fill(body, names, 1) }),
      );
      const served = anonymous(
        await answerOf(route, owner, { path: fill(path, names, 0), body: body && fill(body, names, 0) }),
      );
      assert.notEqual(
        withoutVariance(served),
        withoutVariance(refused),
        `${keyOf(route)} refuses its owner, so the sample shows nothing: ${served}`,
      );
    }
  });

  it("is in no list, no count and behind no cursor", async () => {
    const first = await owner.createSandbox();
    await owner.createSandbox();
    const page = await owner.ask("GET", "/v2/sandboxes?limit=1&order=asc");
    const cursor = String(page.headers["x-next-token"]);
    const text = Buffer.from(cursor, "base64url").toString();
    const forged = Buffer.from(text.replace(/__i[a-z0-9]+/, `__${MADE_UP}`)).toString("base64url");
    const own = await stranger.createSandbox();
    const listed = async (query: string) => {
      const answer = await stranger.ask("GET", `/v2/sandboxes?${query}`);
      const ids = (answer.json() as { readonly sandboxID: string }[]).map(({ sandboxID }) => sandboxID);
      return { ids, next: answer.headers["x-next-token"], running: answer.headers["x-total-running"] };
    };
    const everything = await listed("");
    assert.ok(everything.ids.includes(own.id) && !everything.ids.includes(first.id));
    assert.equal(everything.running, String(everything.ids.length));
    assert.deepEqual(
      await listed(`limit=1&order=asc&nextToken=${cursor}`),
      await listed(`limit=1&order=asc&nextToken=${forged}`),
    );
  });

  it("is behind its own token alone: another's, and a signature made with it, are worth what a made-up one is", async () => {
    const theirs = await owner.createSandbox();
    const own = await stranger.createSandbox();
    const routes = server.routes.filter(({ surface }) =>
      ["envd", "code", "jupyter", "shell"].includes(surface),
    );
    assert.ok(routes.length > 50, "the routes of sandboxes are there");
    for (const route of routes) {
      const { surface, kind, method, path: pattern } = route;
      if (method === "CONNECT" || method === "OPTIONS" || RESERVED.test(pattern)) continue;
      const port = { envd: "49983", code: "49999", jupyter: "8888", shell: "3000" }[surface] ?? "";
      const path = pattern.replace(":sandboxId", theirs.id).replace(/:[A-Za-z]\w*/g, "1");
      const upgrade = kind === "upgrade" ? { connection: "upgrade", upgrade: "websocket" } : {};
      const ask = (token: string) =>
        exchange(server.url, {
          method,
          path,
          headers: {
            "e2b-sandbox-id": theirs.id,
            "e2b-sandbox-port": port,
            "x-access-token": token,
            "x-api-key": stranger.key,
            "content-type": "application/json",
            ...upgrade,
          },
        });
      const what = `${surface} ${method} ${path}`;
      const [withOwn, withMadeUp] = [await ask(own.token), await ask("0".repeat(own.token.length))];
      assert.equal(withOwn.status, withMadeUp.status, what);
      assert.equal(withoutVariance(withOwn.text), withoutVariance(withMadeUp.text), what);
      if (!OPEN.has(`${surface} ${method} ${pattern}`))
        assert.ok(withOwn.status >= 400, `${what} is served: ${withOwn.status}`);
    }
    const closed = { network: { allowPublicTraffic: false } };
    const [theirPorts, ownPorts] = [await owner.createSandbox(closed), await stranger.createSandbox(closed)];
    for (const port of ["8080", "49999", "8888", "3000"]) {
      const through = (token: string | undefined) =>
        exchange(server.url, {
          path: "/contexts",
          headers: {
            "e2b-sandbox-id": theirPorts.id,
            "e2b-sandbox-port": port,
            "x-api-key": stranger.key,
            "e2b-traffic-access-token": token ?? "",
          },
        });
      const [withOwn, withMadeUp] = [await through(ownPorts.trafficToken), await through("0".repeat(43))];
      assert.deepEqual([withOwn.status, withOwn.text], [withMadeUp.status, withMadeUp.text], `port ${port}`);
      assert.equal(withOwn.status, 403, `port ${port}`);
      assert.notEqual((await through(theirPorts.trafficToken)).status, 403, `port ${port}`);
    }
    const signed = `/files?path=a&signature=v1_${"A".repeat(43)}`;
    const addressed = (token: string) =>
      exchange(server.url, {
        path: signed,
        headers: { "e2b-sandbox-id": theirs.id, "e2b-sandbox-port": "49983", "x-access-token": token },
      });
    assert.equal((await addressed(own.token)).text, (await addressed("x")).text);
    for (const path of [signed, "/files/download-token/x.y?path=a"]) {
      const [unaddressed, withKey] = [await exchange(server.url, { path }), await owner.ask("GET", path)];
      assert.equal(unaddressed.text, withKey.text, "a key is worth nothing to a signed URL");
    }
  });
});

/** An answer without what differs between any two: ids of requests, and times of errors. */
function withoutVariance(text: string): string {
  return text.replace(/x-request-id: \S+|\\?"(?:request_id|timestamp)\\?":\\?"[^"\\]+/gi, "");
}
