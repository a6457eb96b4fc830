import assert from "node:assert/strict";
import { createHash, createHmac } from "node:crypto";
import { it } from "node:test";
import { eventually, fakeClock } from "@coppice/core/testing";
import { startEventsServer } from "../testing/events-server.js";
import { Receiver } from "../testing/receiver.js";

const CREATED = "sandbox.lifecycle.created";
const UPDATED = "sandbox.lifecycle.updated";
const KILLED = "sandbox.lifecycle.killed";
const EVERYTHING = [CREATED, UPDATED, KILLED, "sandbox.lifecycle.paused", "sandbox.lifecycle.resumed"];

type Scene = Awaited<ReturnType<typeof startEventsServer>>;

async function register(server: Scene, url: string, more: object = {}): Promise<string> {
  const wish = { name: "mine", url, events: EVERYTHING, signatureSecret: "shared secret", ...more };
  const { status, json } = await server.call("POST /events/webhooks", wish);
  assert.equal(status, 201, JSON.stringify(json));
  return json.id as string;
}

async function deliveries(server: Scene, webhook: string) {
  const { json } = await server.call(`GET /events/webhooks/${webhook}/deliveries?limit=100&orderAsc=true`);
  return json as {
    id: string;
    eventType: string;
    status: string;
    attempts: number;
    nextAttemptAt: string | null;
    responseStatus: number | null;
    error: string | null;
  }[];
}

/** Waits until the first listed delivery has an attempt with a result. */
function noted(server: Scene, webhook: string, attempts: number) {
  return eventually(`attempt ${attempts}`, async () => {
    const [first] = await deliveries(server, webhook);
    return first !== undefined && first.attempts >= attempts && first;
  });
}

it("a webhook is registered, shown without its secret, changed and removed; each has its own life", async () => {
  await using server = await startEventsServer({ webhooks: { maxWebhooks: 2 } });
  const { call } = server;
  const wish = { name: "mine", url: "https://hooks.example/x", events: [CREATED], signatureSecret: "quiet" };
  const made = await call("POST /events/webhooks", wish);
  assert.equal(made.status, 201);
  const { id, createdAt } = made.json;
  const shown = {
    id,
    teamId: "default",
    name: "mine",
    createdAt,
    enabled: true,
    url: wish.url,
    events: [CREATED],
  };
  assert.deepEqual(made.json, shown);
  assert.deepEqual((await call(`GET /events/webhooks/${id}`)).json, shown);
  const generated = await call("POST /events/webhooks", {
    ...wish,
    signatureSecret: undefined,
    enabled: false,
  });
  assert.match(generated.json.signatureSecret, /^whsec_[A-Za-z0-9+/]{43}=$/);
  const list = await call("GET /events/webhooks");
  assert.equal(list.json.length, 2);
  assert.ok(!JSON.stringify(list.json).includes("whsec_"), "a secret is shown again");
  const third = await call("POST /events/webhooks", wish);
  assert.equal(third.status, 429, "more than maxWebhooks");
  const change = { url: "https://hooks.example/y", enabled: false, events: [KILLED, KILLED] };
  const changed = await call(`PATCH /events/webhooks/${id}`, change);
  assert.deepEqual(changed.json, { ...shown, url: change.url, enabled: false, events: [KILLED] });
  assert.equal((await call(`DELETE /events/webhooks/${id}`)).status, 200);
  for (const route of [
    `GET /events/webhooks/${id}`,
    `DELETE /events/webhooks/${id}`,
    `PATCH /events/webhooks/${id}`,
    `GET /events/webhooks/${id}/deliveries`,
    `POST /events/webhooks/${id}/deliveries/x/repeat`,
  ]) {
    assert.equal((await call(route, route.startsWith("PATCH") ? {} : undefined)).status, 404, route);
  }
});

it("an invalid webhook is refused with the reason, also for a private target", async () => {
  await using server = await startEventsServer({ webhooks: { privateTargets: [] } });
  const wish = { url: "https://hooks.example/x", events: [CREATED] };
  const bad: readonly object[] = [
    { ...wish, url: "ftp://hooks.example" },
    { ...wish, url: "not a url" },
    { ...wish, url: "https://user:password@hooks.example" },
    { ...wish, url: `https://hooks.example/${"x".repeat(3000)}` },
    { ...wish, url: "http://127.0.0.1:9464/metrics" },
    { ...wish, url: "http://[::ffff:169.254.169.254]/latest" },
    { ...wish, url: "http://2130706433/" },
    { ...wish, events: [] },
    { ...wish, events: ["sandbox.lifecycle.exploded"] },
    { ...wish, signatureSecret: "" },
    { ...wish, signatureSecret: "whsec_?" },
    { ...wish, name: "x".repeat(300) },
    { events: [CREATED] },
  ];
  for (const body of bad) {
    const { status, json } = await server.call("POST /events/webhooks", body);
    assert.equal(status, 400, JSON.stringify(body));
    assert.match(json.message, /^validation error: /);
  }
  assert.equal((await server.call("POST /events/webhooks", "{")).status, 400);
  const id = await register(server, "https://hooks.example/x", { enabled: false });
  for (const body of bad.slice(0, -1)) {
    assert.equal((await server.call(`PATCH /events/webhooks/${id}`, body)).status, 400, JSON.stringify(body));
  }
});

it("a receiver gets each event of its types once, in order, signed in both ways", async () => {
  await using server = await startEventsServer();
  await using receiver = await Receiver.start();
  const webhook = await register(server, `${receiver.url}/hook?x=1`);
  const killsOnly = await register(server, `${receiver.url}/kills`, {
    events: [KILLED],
    signatureSecret: undefined,
  });
  const id = await server.create();
  for (let index = 0; index < 10; index += 1)
    await server.call(`POST /sandboxes/${id}/timeout`, { timeout: 600 });
  await server.call(`DELETE /sandboxes/${id}`);
  await receiver.count(13);
  const sent = receiver.received.filter(({ path }) => path === "/hook?x=1");
  const { json } = await server.call(`GET /events/sandboxes/${id}?orderAsc=true&limit=100`);
  assert.deepEqual(
    sent.map(({ body }) => JSON.parse(body) as unknown),
    json,
  );
  for (const { headers, body } of sent) {
    const digest = createHash("sha256").update(`shared secret${body}`).digest("base64").replace(/=+$/, "");
    assert.equal(headers["e2b-signature"], digest);
    assert.equal(headers["e2b-signature-version"], "v1");
    assert.equal(headers["e2b-webhook-id"], webhook);
    assert.equal(headers["e2b-delivery-id"], headers["webhook-id"]);
    assert.equal(headers["content-type"], "application/json");
    const content = [headers["webhook-id"], headers["webhook-timestamp"], body].join(".");
    const mac = createHmac("sha256", "shared secret").update(content).digest("base64");
    assert.equal(headers["webhook-signature"], `v1,${mac}`);
    assert.equal(headers["webhook-timestamp"], String(Math.floor(server.clock.now() / 1000)));
  }
  assert.equal(new Set(sent.map(({ headers }) => headers["e2b-delivery-id"])).size, 12);
  assert.deepEqual(
    receiver.received
      .filter(({ path }) => path === "/kills")
      .map(({ body }) => JSON.parse(body).type as string),
    [KILLED],
  );
  await eventually("the end of the last one", async () =>
    (await deliveries(server, webhook)).every(({ status }) => status === "delivered"),
  );
  assert.equal((await deliveries(server, killsOnly)).length, 1);
  const everybodys = await server.call("GET /events/webhooks/deliveries?limit=100");
  assert.equal(everybodys.json.length, 13);
});

it("a key of whsec_ is the bytes that it stands for", async () => {
  await using server = await startEventsServer();
  await using receiver = await Receiver.start();
  const secret = Buffer.from("0123456789abcdef0123456789abcdef");
  await register(server, receiver.url, { signatureSecret: `whsec_${secret.toString("base64")}` });
  await server.create();
  const [{ headers, body } = assert.fail()] = await receiver.count(1);
  const content = [headers["webhook-id"], headers["webhook-timestamp"], body].join(".");
  assert.equal(
    headers["webhook-signature"],
    `v1,${createHmac("sha256", secret).update(content).digest("base64")}`,
  );
});

it("a refused delivery is repeated with growing pauses and the same id, delays later ones, and fails in the end", async () => {
  await using server = await startEventsServer({
    webhooks: { attempts: 4, firstRetry: "5s", longestRetry: "8s" },
  });
  await using receiver = await Receiver.start();
  const webhook = await register(server, receiver.url);
  receiver.answer = (_received, response) => response.writeHead(500).end();
  const id = await server.create();
  const { clock } = server;
  let startedAtMs = clock.now();
  for (const [attempt, waitMs] of [5000, 8000, 8000].entries()) {
    const { nextAttemptAt } = await noted(server, webhook, attempt + 1);
    assert.equal(Date.parse(nextAttemptAt ?? "") - startedAtMs, waitMs);
    if (attempt === 0) await server.call(`DELETE /sandboxes/${id}`);
    await clock.advance(waitMs - 1);
    assert.equal(receiver.received.length, attempt + 1, "it came too early, or another one overtook it");
    await clock.advance(1);
    startedAtMs = clock.now();
    await receiver.count(attempt + 2);
    if (attempt === 2) receiver.answer = (_received, response) => response.writeHead(200).end();
  }
  await receiver.count(5);
  const [first, second] = await eventually("both are done", async () => {
    const list = await deliveries(server, webhook);
    return list.every(({ status }) => status !== "pending") && list;
  });
  assert.deepEqual([first?.status, first?.attempts, first?.responseStatus], ["failed", 4, 500]);
  assert.equal(first?.error, "it was answered with 500");
  assert.deepEqual([second?.status, second?.attempts], ["delivered", 1]);
  const ids = receiver.received.map(({ headers }) => headers["e2b-delivery-id"]);
  assert.equal(new Set(ids.slice(0, 4)).size, 1);
  assert.equal(new Set(receiver.received.slice(0, 4).map(({ body }) => body)).size, 1);
  const metrics = await (await fetch(`${server.urls["ops"]}/metrics`)).text();
  assert.match(metrics, /^coppice_events_attempts_total\{outcome="retried"\} 3$/m);
  assert.match(metrics, /^coppice_events_attempts_total\{outcome="failed"\} 1$/m);
  assert.match(metrics, /^coppice_events_attempts_total\{outcome="delivered"\} 1$/m);
  assert.match(metrics, /^coppice_events_recorded_total\{type="sandbox.lifecycle.killed"\} 1$/m);
  const again = `POST /events/webhooks/${webhook}/deliveries/${first?.id}/repeat`;
  assert.equal((await server.call(again)).status, 202);
  await receiver.count(6);
  assert.equal(receiver.received.at(-1)?.headers["e2b-delivery-id"], first?.id);
  const repeated = await eventually("the repeated one", async () =>
    (await deliveries(server, webhook)).find(({ id, status }) => id === first?.id && status === "delivered"),
  );
  assert.equal(repeated.attempts, 1, "the attempts before the repetition are counted");
});

it("a receiver that does not answer, hangs up, redirects or floods is a failed attempt, and delays no others", async () => {
  await using server = await startEventsServer({ webhooks: { timeout: "10s", attempts: 1, concurrency: 2 } });
  await using receiver = await Receiver.start();
  await using other = await Receiver.start();
  const outcomeOf = async (webhook: string) => {
    const [first] = await eventually("an outcome", async () => {
      const list = await deliveries(server, webhook);
      return list.length > 0 && list.every(({ status }) => status !== "pending") && list;
    });
    return [first?.status, first?.responseStatus, first?.error];
  };
  receiver.answer = ({ path }, response) => {
    if (path === "/hang-up") response.destroy();
    if (path === "/redirect") response.writeHead(307, { location: `${other.url}/stolen` }).end();
    if (path === "/flood") {
      response.writeHead(200);
      const more = (): void => {
        while (!response.destroyed && response.write(Buffer.alloc(64 * 1024)));
        if (!response.destroyed) response.once("drain", more);
      };
      more();
    }
  };
  const silent = await register(server, `${receiver.url}/silent`, { events: [CREATED] });
  const [hangUp, redirect, flood] = await Promise.all(
    ["/hang-up", "/redirect", "/flood"].map((path) =>
      register(server, receiver.url + path, { events: [CREATED] }),
    ),
  );
  const well = await register(server, `${other.url}/well`, { events: [CREATED] });
  await server.create();
  assert.deepEqual(await outcomeOf(well), ["delivered", 204, null]);
  assert.deepEqual(await outcomeOf(hangUp ?? ""), ["failed", null, "the connection failed"]);
  assert.deepEqual(await outcomeOf(redirect ?? ""), ["failed", 307, "it was answered with 307"]);
  assert.deepEqual(await outcomeOf(flood ?? ""), ["delivered", 200, null]);
  assert.equal((await deliveries(server, silent))[0]?.status, "pending");
  await server.clock.advance(10_000);
  assert.deepEqual(await outcomeOf(silent), ["failed", null, "there was no answer within 10000 ms"]);
  assert.deepEqual(
    other.received.map(({ path }) => path),
    ["/well"],
  );
});

it("a name of this host is refused with the same answer as an unknown one", async () => {
  await using server = await startEventsServer({ webhooks: { privateTargets: [], attempts: 1 } });
  await using receiver = await Receiver.start();
  const port = new URL(receiver.url).port;
  const webhook = await register(server, `http://localhost:${port}/`);
  const nobody = await register(server, "http://no-such-host.invalid/");
  await server.create();
  for (const id of [webhook, nobody]) {
    const done = await eventually("a failure", async () =>
      (await deliveries(server, id)).find(({ status }) => status === "failed"),
    );
    assert.equal(done.error, "the host has no public address");
  }
  assert.deepEqual(receiver.received, []);
});

it("pending and finished deliveries are limited; nothing is queued for a disabled webhook", async () => {
  await using server = await startEventsServer({ webhooks: { maxPending: 3, maxDeliveries: 4 } });
  await using receiver = await Receiver.start();
  const webhook = await register(server, receiver.url);
  let release = (): void => undefined;
  receiver.answer = (_received, response) => {
    release = () => response.writeHead(204).end();
  };
  const id = await server.create();
  await receiver.count(1);
  const update = (): Promise<unknown> => server.call(`POST /sandboxes/${id}/timeout`, { timeout: 600 });
  for (let index = 0; index < 4; index += 1) await update();
  const states = async () => (await deliveries(server, webhook)).map(({ status }) => status);
  assert.deepEqual(await states(), ["pending", "pending", "pending", "dropped", "dropped"]);
  await server.call(`PATCH /events/webhooks/${webhook}`, { enabled: false });
  await update();
  release();
  await eventually("the one under way", async () => (await states())[0] === "delivered");
  assert.deepEqual(await states(), ["delivered", "pending", "pending", "dropped", "dropped"]);
  assert.equal(receiver.received.length, 1, "a disabled webhook was told something");
  receiver.answer = (_received, response) => response.writeHead(204).end();
  await server.call(`PATCH /events/webhooks/${webhook}`, { enabled: true });
  await receiver.count(3);
  await eventually("the rest", async () => !(await states()).includes("pending"));
  await update();
  await eventually(
    "the newest",
    async () => (await states()).length === 4 && !(await states()).includes("pending"),
  );
  const metrics = await (await fetch(`${server.urls["ops"]}/metrics`)).text();
  assert.match(metrics, /^coppice_events_dropped_total 2$/m);
});

it("the next server delivers pending and interrupted deliveries, in order", async () => {
  const clock = fakeClock();
  await using receiver = await Receiver.start();
  receiver.answer = () => undefined;
  await using first = await startEventsServer({ clock, server: { sandboxes: { onShutdown: "destroy" } } });
  const webhook = await register(first, receiver.url);
  const id = await first.create();
  await receiver.count(1);
  await first.stop();
  receiver.answer = (_received, response) => response.writeHead(204).end();
  await using second = await startEventsServer({ clock, dataDir: first.dataDir });
  await receiver.count(3);
  const sent = receiver.received.map(
    ({ headers, body }) => [headers["e2b-delivery-id"], JSON.parse(body)] as const,
  );
  assert.deepEqual(
    sent.map(([, event]) => event.type as string),
    [CREATED, CREATED, KILLED],
  );
  assert.equal(sent[0]?.[0], sent[1]?.[0], "the repeated one has another id");
  assert.equal(sent[2]?.[1].eventData.reason, "shutdown");
  assert.equal(sent[2]?.[1].sandboxId, id);
  await eventually("all delivered", async () =>
    (await deliveries(second, webhook)).every(({ status }) => status === "delivered"),
  );
  assert.equal((await deliveries(second, webhook))[0]?.attempts, 1, "an attempt that was cut counted");
});
