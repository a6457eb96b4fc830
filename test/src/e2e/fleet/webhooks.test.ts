import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, describe, it } from "node:test";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "@coppice/plugin-fleet/testing";
import { eventually } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { makeFleetInstallations } from "../../harness/server/fleet-installations.js";
import { type Installation, ServerProcess } from "../../harness/server/server-process.js";

const LEASE_MS = 2000;
const MOST = 4;
const CREATED = "sandbox.lifecycle.created";
const KILLED = "sandbox.lifecycle.killed";
const BOTH = [0, 1];

interface Received {
  readonly path: string;
  readonly delivery: string;
  readonly event: { readonly id: string; readonly type: string; readonly sandboxId: string };
  readonly text: string;
}

interface Listed {
  readonly id: string;
  readonly eventId: string;
  readonly status: string;
}

function cases(storeOf: () => Record<string, unknown>): void {
  let receiver: Server;
  let received: Received[] = [];
  let installations: readonly Installation[] = [];
  const servers: ServerProcess[] = [];
  /** A key of another tenant for each server. */
  const strangers: string[] = [];

  before(async () => {
    receiver = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on("data", (chunk: Buffer) => chunks.push(chunk));
      request.on("end", () => {
        const text = Buffer.concat(chunks).toString();
        const event = JSON.parse(text) as Received["event"];
        const delivery = String(request.headers["webhook-id"]);
        received.push({ path: request.url ?? "", delivery, event, text });
        response.writeHead(204).end();
      });
    });
    receiver.listen(0, "127.0.0.1");
    await once(receiver, "listening");
    installations = await makeFleetInstallations({
      count: BOTH.length,
      fleet: { lease: `${LEASE_MS}ms`, restart: "20s", ...storeOf() },
      plugins: () => ({ events: { webhooks: { privateTargets: ["127.0.0.1"], maxWebhooks: MOST } } }),
    });
    for (const { configFile } of installations) {
      servers.push(await ServerProcess.start(configFile));
      const words = ["keys", "create", configFile, "--tenant", "stranger", "--scopes", "admin"];
      strangers.push((await startCoppice(words).end).stdout.toString().trim());
    }
  });
  after(async () => {
    for (const server of servers) await server.stop();
    for (const installation of installations) await installation.remove();
    receiver.closeAllConnections();
    receiver.close();
  });
  beforeEach(() => {
    received = [];
  });

  // Each call names the type of its answer.
  // oxlint-disable-next-line typescript/no-explicit-any
  const call = async (index: number, route: string, body?: object, key = API_KEY): Promise<any> => {
    const [method = "", path = ""] = route.split(" ");
    const answer = await fetch(`${servers[index]?.url}${path}`, {
      method,
      headers: { "x-api-key": key, "content-type": "application/json" },
      ...(body && { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    return answer.ok ? (text === "" ? undefined : JSON.parse(text)) : `${answer.status} ${text}`;
  };
  const urlOf = (path: string): string =>
    `http://127.0.0.1:${(receiver.address() as AddressInfo).port}${path}`;
  const register = async (index: number, path: string, key?: string): Promise<string> => {
    const wish = { name: path, url: urlOf(path), events: [CREATED, KILLED] };
    const made = await call(index, "POST /events/webhooks", wish, key);
    return typeof made === "string" ? made : (made as { readonly id: string }).id;
  };
  const remove = (index: number, id: string): Promise<unknown> =>
    call(index, `DELETE /events/webhooks/${id}`);
  /** A server takes what it is asked for as long as no other is better off. */
  const create = async (index: number, key?: string): Promise<string> =>
    (await call(index, "POST /sandboxes", { templateID: "base" }, key)).sandboxID as string;
  const end = async (index: number, id: string, key?: string): Promise<void> =>
    assert.equal(await call(index, `DELETE /sandboxes/${id}`, undefined, key), undefined);
  /** Types of the events of a sandbox that came to a path, in their order. */
  const told = (path: string, sandbox: string): readonly string[] =>
    received
      .filter((one) => one.path === path && one.event.sandboxId === sandbox)
      .map(({ event }) => event.type);
  const hears = (path: string, sandbox: string, type: string): Promise<unknown> =>
    eventually(`${path} hears of ${type}`, () => told(path, sandbox).includes(type));

  it("hears of the sandboxes of all servers, each event once, wherever it was registered", async () => {
    const webhook = await register(0, "/all");
    const made = [await create(0), await create(1), await create(0), await create(1)];
    for (const [index, id] of made.entries()) await end((index + 1) % 2, id);
    for (const id of made) await hears("/all", id, KILLED);
    for (const id of made) assert.deepEqual(told("/all", id), [CREATED, KILLED]);
    assert.equal(new Set(received.map(({ event }) => event.id)).size, 2 * made.length);
    const own = await Promise.all(
      servers.map(async (server) => {
        const answer = await fetch(`${server.urls["ops"]}/metrics`);
        return /^coppice_events_attempts_total\{outcome="delivered"\} (\d+)$/m.exec(await answer.text())?.[1];
      }),
    );
    for (const count of own) assert.ok(Number(count) > 0, `of both servers: ${own.join(" ")}`);

    const list = (index: number, path: string): Promise<readonly Listed[]> =>
      call(index, `GET /events/webhooks/${path}`);
    const everything = await eventually("all are noted", async () => {
      const all = await list(0, "deliveries?limit=100");
      return all.length === received.length && all.every(({ status }) => status === "delivered")
        ? all
        : undefined;
    });
    assert.deepEqual(
      everything.map(({ eventId }) => eventId).toSorted(),
      received.map(({ event }) => event.id).toSorted(),
    );
    assert.deepEqual(await list(1, `${webhook}/deliveries?limit=100`), everything);
    assert.deepEqual(await list(1, `${webhook}/deliveries?limit=3&offset=2`), everything.slice(2, 5));
    // Each from the server that does not have it, too.
    const ids = new Map(received.map(({ delivery, event }) => [delivery, event.id]));
    for (const index of BOTH) {
      received = [];
      for (const { id } of everything)
        assert.deepEqual(await call(index, `POST /events/webhooks/${webhook}/deliveries/${id}/repeat`), {});
      await eventually("they are repeated", () => received.length >= everything.length);
      assert.deepEqual(new Map(received.map(({ delivery, event }) => [delivery, event.id])), ids);
      await eventually("that is noted", async () =>
        (await list(0, "deliveries?limit=100")).every(({ status }) => status === "delivered"),
      );
    }
    await remove(1, webhook);
  });

  it("is listed, changed and removed by every server, at once", async () => {
    const [first, second] = [await register(0, "/first"), await register(1, "/second")];
    const lists = await Promise.all(BOTH.map((index) => call(index, "GET /events/webhooks")));
    assert.deepEqual(lists[0], lists[1]);
    assert.deepEqual(
      (lists[0] as readonly { readonly id: string }[]).map(({ id }) => id),
      [first, second],
    );
    assert.doesNotMatch(JSON.stringify(lists), /whsec_/);
    const changed = await call(1, `PATCH /events/webhooks/${first}`, { url: urlOf("/changed") });
    assert.deepEqual(await call(0, `GET /events/webhooks/${first}`), changed);
    await remove(0, second);
    for (const index of BOTH) assert.match(await call(index, `GET /events/webhooks/${second}`), /^404/);
    for (const index of BOTH) {
      const id = await create(index);
      await hears("/changed", id, CREATED);
      await end(index, id);
    }
    assert.ok(received.every(({ path }) => path === "/changed"));
    await remove(0, first);
  });

  it("of a tenant there are as many as one server would have, also of those registered at once", async () => {
    const answers = await Promise.all(
      Array.from({ length: 5 * MOST }, (_, index) => register(index % 2, "/many")),
    );
    const made = answers.filter((answer) => !answer.startsWith("429 "));
    assert.equal(made.length, MOST, answers.join("\n"));
    await remove(0, made[0] ?? "");
    const again = await register(1, "/many");
    assert.match(await register(0, "/many"), /^429 .*maximum number of webhooks/);
    for (const id of [...made.slice(1), again]) await remove(0, id);
  });

  it("is of its own tenant at every server", async () => {
    const mine = await register(0, "/mine");
    const theirs = await register(1, "/theirs", strangers[1]);
    const sandbox = await create(0);
    const foreign = await create(1, strangers[1]);
    await hears("/mine", sandbox, CREATED);
    await hears("/theirs", foreign, CREATED);
    const [{ id: delivery } = assert.fail()] = (await call(
      1,
      `GET /events/webhooks/${mine}/deliveries`,
    )) as readonly Listed[];
    for (const index of BOTH) {
      const key = strangers[index];
      assert.deepEqual(
        (await call(index, "GET /events/webhooks", undefined, key)).map(({ id }: Listed) => id),
        [theirs],
      );
      for (const id of [mine, "nothing"])
        for (const route of [
          `GET /events/webhooks/${id}`,
          `DELETE /events/webhooks/${id}`,
          `GET /events/webhooks/${id}/deliveries`,
          `POST /events/webhooks/${id}/deliveries/${delivery}/repeat`,
        ])
          assert.match(await call(index, route, undefined, key), /^404 /, route);
    }
    assert.deepEqual(told("/mine", foreign), []);
    assert.deepEqual(told("/theirs", sandbox), []);
    await end(1, sandbox);
    await end(1, foreign, strangers[1]);
    await remove(1, mine);
    await call(0, `DELETE /events/webhooks/${theirs}`, undefined, strangers[0]);
  });

  it("outlives the server where it was registered, which learns of changes when it is back", async () => {
    const kept = await register(0, "/kept");
    const removed = await register(0, "/removed");
    const sandbox = await create(0);
    await hears("/kept", sandbox, CREATED);
    await hears("/removed", sandbox, CREATED);
    servers[0]?.signal("SIGKILL");
    await servers[0]?.ended;
    assert.deepEqual(
      (await call(1, "GET /events/webhooks")).map(({ id }: Listed) => id),
      [kept, removed],
    );
    await remove(1, removed);
    await hears("/kept", sandbox, KILLED);
    assert.match(
      received.find(({ event }) => event.type === KILLED && event.sandboxId === sandbox)?.text ?? "",
      /server lost/,
    );
    const other = await create(1);
    await hears("/kept", other, CREATED);
    servers[0] = await ServerProcess.start(installations[0]?.configFile ?? "");
    assert.deepEqual(
      (await call(0, "GET /events/webhooks")).map(({ id }: Listed) => id),
      [kept],
    );
    const again = await create(0);
    await hears("/kept", again, CREATED);
    assert.deepEqual([...told("/removed", other), ...told("/removed", again)], []);
    // What both servers tell of the end is one event, in one delivery.
    const ends = received.filter(({ event }) => event.type === KILLED && event.sandboxId === sandbox);
    assert.equal(new Set(ends.map(({ event }) => event.id)).size, 1);
    assert.equal(new Set(ends.map(({ delivery }) => delivery)).size, 1);
    for (const id of [other, again]) await end(0, id);
  });
}

describe("webhooks of a fleet on etcd", { skip: reasonWithoutEtcd(), timeout: 240_000 }, () => {
  let etcd: Cluster;
  before(async () => {
    etcd = await startEtcd();
  });
  after(() => etcd[Symbol.asyncDispose]());
  cases(() => ({ etcd: { endpoints: etcd.endpoints } }));
});

describe("webhooks of a fleet on an SQLite file", { timeout: 240_000 }, () => {
  let directory: string;
  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
  });
  after(() => rm(directory, { recursive: true }));
  cases(() => ({ file: join(directory, "fleet.sqlite") }));
});
