import assert from "node:assert/strict";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { request } from "node:http";
import type { Socket } from "node:net";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { it } from "node:test";
import { definePlugin } from "@coppice/core";
import { greetingSocket, HANDSHAKE } from "@coppice/core/testing";
import { AuditLog } from "./audit-log.js";
import { startAccessServer } from "../testing/access-server.js";
import type { Scope } from "../keys/key-store.js";

it("every write and every refusal is in the audit before its client is answered, for admins of its tenant", async () => {
  await using server = await startAccessServer();
  const ask = async (key: string, query = "") =>
    (await server.call(`GET /audit/events${query}`, { "x-api-key": key })).json;
  const admin = server.newKey({ name: "boss", scopes: ["admin"] });
  const user = server.newKey({ name: "ci" });
  const foreign = server.newKey({ tenant: "other", scopes: ["admin"] });
  const made = await server.call(
    "POST /v2/sandboxes?token=secret",
    { "x-api-key": user },
    { templateID: "base" },
  );
  const id: string = made.json.sandboxID;
  const [first] = (await ask(admin)).events;
  assert.deepEqual(
    { ...first, eventID: "", requestID: "" },
    {
      eventID: "",
      timestamp: new Date(server.clock.now()).toISOString(),
      method: "POST",
      path: "/v2/sandboxes",
      route: "/v2/sandboxes",
      status: 201,
      outcome: "allowed",
      tenantID: "acme",
      principalName: "ci",
      scopes: ["read", "write", "exec", "attach"],
      sandboxID: id,
      address: "127.0.0.1",
      requestID: "",
    },
  );
  assert.equal(first.requestID, made.headers.get("x-request-id"));
  await server.call(`GET /sandboxes/${id}`, { "x-api-key": user });
  await server.call("GET /sandboxes/imadeup", { "x-api-key": user });
  await server.call(`GET /audit/events`, { "x-api-key": user });
  await server.call(`DELETE /sandboxes/${id}`, { "x-api-key": user });
  await server.call(`DELETE /sandboxes/${id}`, { "x-api-key": foreign });
  await server.call("GET /sandboxes", { "x-api-key": "e2b_0" });
  const line = (event: Record<string, unknown>) =>
    [event["method"], event["path"], event["status"], event["outcome"], event["sandboxID"]].join(" ");
  assert.deepEqual((await ask(admin, "?orderAsc=true")).events.map(line), [
    `POST /v2/sandboxes 201 allowed ${id}`,
    "GET /sandboxes/imadeup 404 error imadeup",
    "GET /audit/events 403 denied ",
    `DELETE /sandboxes/${id} 204 allowed ${id}`,
  ]);
  assert.deepEqual((await ask(foreign)).events.map(line), [`DELETE /sandboxes/${id} 404 error ${id}`]);
  // Another tenant and an unknown tenant get the same answer.
  assert.deepEqual(await ask(foreign, "?tenantID=acme"), { events: [], count: 0 });
  assert.deepEqual(await ask(foreign, "?tenant=madeup"), { events: [], count: 0 });
  assert.equal((await ask(admin, "?outcome=denied")).count, 1);
  assert.equal((await ask(admin, "?pathPrefix=/sandboxes")).count, 2);
  assert.deepEqual((await ask(admin, "?limit=1&offset=1")).events.map(line), [
    "GET /audit/events 403 denied ",
  ]);
  for (const query of ["?limit=501", "?limit=x", "?outcome=maybe", "?offset=-1", "?orderAsc=perhaps"]) {
    assert.equal((await ask(admin, query)).code, 400, query);
  }
});

it("a WebSocket that is opened is in the audit: it is a GET, and may do anything", async () => {
  const opened = definePlugin({
    name: "opened",
    setup(plugin) {
      plugin.webSocket("api", ["/opened"], greetingSocket);
    },
  });
  await using server = await startAccessServer({ plugins: [opened] });
  const key = { "x-api-key": server.newKey({ scopes: ["admin"] }) };
  const headers = { ...key, ...HANDSHAKE };
  const asked = request(`${server.url}/opened`, { headers }).end();
  const [, socket] = (await once(asked, "upgrade")) as [unknown, Socket];
  socket.destroy();
  const [event] = (await server.call("GET /audit/events", key)).json.events;
  assert.deepEqual([event?.path, event?.status, event?.outcome], ["/opened", 101, "allowed"]);
});

it("the secret of a link is in no entry, whatever the link is used for", async () => {
  const ticket = `${"a".repeat(80)}.${"b".repeat(43)}`;
  const linked = definePlugin({
    name: "linked",
    setup(plugin) {
      const guard = () => ({ tenant: "acme", name: "link", scopes: new Set<Scope>(["write"]) });
      plugin.http("api", { guard }).put("/linked/:ticket", (ctx) => void (ctx.body = "done"));
    },
  });
  await using server = await startAccessServer({ plugins: [linked] });
  for (const [method, path] of [
    ["PUT", `/linked/${ticket}`],
    ["DELETE", `/linked/${ticket}`],
    ["PUT", `/linked/${ticket}/more`],
  ])
    await server.call(`${method} ${path}`);
  const admin = server.newKey({ scopes: ["admin"] });
  const { events } = (await server.call("GET /audit/events?orderAsc=true", { "x-api-key": admin })).json;
  assert.equal(events[0].path, "/linked/:ticket");
  const stored = await readFile(join(server.dataDir, "access", "audit.sqlite"), "latin1");
  const waiting = await readFile(join(server.dataDir, "access", "audit.sqlite-wal"), "latin1");
  assert.ok(waiting.includes("/linked/"), "the entries are there");
  assert.ok(!stored.includes(ticket) && !waiting.includes(ticket));
});

it("entries outlive the server, within limits of number and age; unauthenticated ones displace only each other", async () => {
  await using server = await startAccessServer();
  const limits = {
    dataDir: join(server.dataDir, "access"),
    maxEntries: 100,
    maxStrangers: 20,
    maxAge: 10_000,
  };
  const entry = {
    requestId: "r",
    address: "192.0.2.1",
    method: "POST",
    path: "/x",
    route: "none",
    status: 401,
    outcome: "denied",
    principal: undefined,
    scopes: [],
    sandbox: undefined,
    principalType: undefined,
    actor: undefined,
  } as const;
  const all = { limit: 10_000, offset: 0, oldestFirst: true };
  const first = new AuditLog(limits);
  for (let index = 0; index < 40; index += 1) first.write({ ...entry, atMs: index, tenant: "acme" });
  for (let index = 0; index < 1000; index += 1) first.write({ ...entry, atMs: 5000, tenant: undefined });
  first.close();
  const second = new AuditLog(limits);
  const kept = (tenant?: string) => second.list({ ...all, tenant }).length;
  assert.equal(kept("acme"), 40);
  assert.ok(kept() - 40 <= 20 + 64, `${kept() - 40} of strangers are left`);
  for (let index = 0; index < 1000; index += 1) second.write({ ...entry, atMs: 9000, tenant: "acme" });
  assert.ok(kept("acme") <= 100 + 64);
  for (let index = 0; index < 30; index += 1) second.write({ ...entry, atMs: 9000, tenant: "small" });
  for (let index = 0; index < 1000; index += 1) second.write({ ...entry, atMs: 9000, tenant: "acme" });
  assert.equal(kept("small"), 30, "a tenant has displaced the entries of another");
  const made = { ...entry, tenant: "acme", route: "/v2/sandboxes", status: 201, outcome: "allowed" } as const;
  for (let index = 0; index < 10; index += 1) second.write({ ...made, atMs: 9000 });
  for (let index = 0; index < 1000; index += 1) second.write({ ...entry, atMs: 9000, tenant: "acme" });
  assert.equal(
    second.list({ ...all, tenant: "acme", outcome: "allowed" }).length,
    10,
    "a tenant has displaced its own entries by many of another kind",
  );
  for (let index = 0; index < 64; index += 1) second.write({ ...entry, atMs: 60_000, tenant: "other" });
  assert.equal(kept("acme"), 0, "they are too old");
  second.close();
});

it("an audit that cannot be written is reported to the operator, and serving goes on", async () => {
  await using server = await startAccessServer();
  const key = server.newKey();
  const audit = new DatabaseSync(join(server.dataDir, "access", "audit.sqlite"));
  audit.exec("DROP TABLE event");
  audit.close();
  const made = await server.call("POST /v2/sandboxes", { "x-api-key": key }, { templateID: "base" });
  assert.equal(made.status, 201);
  const metrics = await (await fetch(`${server.urls["ops"]}/metrics`)).text();
  assert.match(metrics, /^coppice_access_audit_lost_total 1$/m);
  const ready = (await (await fetch(`${server.urls["ops"]}/readyz`)).json()) as { details: unknown };
  assert.deepEqual(ready.details, { audit: { lost: "1 entries" } });
});
