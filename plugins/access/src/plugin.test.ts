import assert from "node:assert/strict";
import { readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import { definePlugin, permit, SCOPES } from "@coppice/core";
import { startAccessServer } from "./testing/access-server.js";

const CONFIGURED = `e2b_${"0123456789abcdef".repeat(2)}01234567`;
const HOUR_MS = 3_600_000;

/** One route for each scope. */
const scoped = definePlugin({
  name: "scoped",
  setup(context) {
    for (const scope of SCOPES) {
      context.http("api").get(`/scoped/${scope}`, permit(scope), (ctx) => {
        ctx.status = 204;
      });
    }
  },
});

describe("a key", () => {
  it("authenticates its tenant, by either header; every other is refused with E2B's texts", async () => {
    await using server = await startAccessServer({ settings: { apiKeys: [CONFIGURED] } });
    const key = server.newKey({ name: "ci" });
    const expiring = server.newKey({ expiresAtMs: server.clock.now() + HOUR_MS });
    const revoked = server.newKey({ name: "gone" });
    server.newKey({ name: "short", tenant: "past", expiresAtMs: server.clock.now() + HOUR_MS });
    assert.deepEqual(server.keys.tenants(server.clock.now()).toSorted(), ["acme", "past"]);
    assert.match(key, /^e2b_[0-9a-f]{40}$/);
    const gone = server.keys.list().find(({ name }) => name === "gone");
    assert.ok(gone);
    const whoami = async (headers: Record<string, string>) =>
      (await server.call("GET /auth/whoami", headers)).json;
    const ci = { tenantID: "acme", principalName: "ci", scopes: ["read", "write", "exec", "attach"] };
    assert.deepEqual(await whoami({ "X-API-KEY": key }), ci);
    assert.deepEqual(await whoami({ authorization: `Bearer ${key}` }), ci);
    assert.equal((await whoami({ "x-api-key": CONFIGURED })).tenantID, "default");
    assert.equal((await whoami({ "x-api-key": revoked })).tenantID, "acme");
    assert.equal((await whoami({ "x-api-key": expiring })).tenantID, "acme");
    server.keys.revoke(gone.id, server.clock.now());
    await server.clock.advance(HOUR_MS);
    assert.deepEqual(server.keys.tenants(server.clock.now()), ["acme"]);
    const refusals: [Record<string, string>, string][] = [
      [{}, "authorization header is missing"],
      [{ "X-API-KEY": "" }, "authorization header is missing"],
      [{ authorization: `Basic ${key}` }, "authorization header is missing"],
      [{ "X-API-KEY": "local" }, "Invalid API key format"],
      [{ "X-API-KEY": "e2b_XYZ" }, "Invalid API key format"],
      [{ authorization: "Bearer a.b.c" }, "Invalid API key format"],
      [{ "X-API-KEY": key.slice(0, -1) }, "Cannot get the team for the given API key"],
      [{ "X-API-KEY": `${key}0` }, "Cannot get the team for the given API key"],
      [{ "X-API-KEY": revoked }, "Cannot get the team for the given API key"],
      [{ "X-API-KEY": expiring }, "Cannot get the team for the given API key"],
      // A wrong key is refused, even with a valid one in another header.
      [
        { "X-API-KEY": revoked, "authorization": `Bearer ${key}` },
        "Cannot get the team for the given API key",
      ],
    ];
    for (const [headers, message] of refusals) {
      for (const route of ["GET /sandboxes", "POST /v2/sandboxes", "DELETE /sandboxes/x", "GET /nowhere"]) {
        const { status, json } = await server.call(route, headers);
        assert.equal(status, 401, `${route} ${JSON.stringify(headers)}`);
        assert.deepEqual(json, { code: 401, message });
      }
    }
    const metrics = await (await fetch(`${server.urls["ops"]}/metrics`)).text();
    const counted = /^coppice_access_refused_total\{reason="unauthenticated"\} (\d+)$/m.exec(metrics)?.[1];
    assert.equal(Number(counted), refusals.length * 4);
    assert.equal((await server.call("GET /health")).status, 200);
    assert.equal((await server.call("GET /health/")).status, 401);
  });

  it("is kept as a digest alone, in files of this user", async () => {
    await using server = await startAccessServer();
    const key = server.newKey();
    for (const name of ["keys.sqlite", "keys.sqlite-wal", "audit.sqlite"]) {
      const path = join(server.dataDir, "access", name);
      assert.equal((await stat(path)).mode & 0o077, 0, name);
      assert.ok(!(await readFile(path)).includes(key.slice(12)), `${name} has the key in it`);
    }
    assert.throws(() => {
      server.newKey({ name: "same" });
      server.newKey({ name: "same" });
    }, /has a key named 'same' already/);
    server.newKey({ name: "same", tenant: "other" });
  });

  it("does what its scopes allow", async () => {
    await using server = await startAccessServer({ plugins: [scoped] });
    const allowed = {
      read: ["read"],
      exec: ["read", "write", "exec", "attach"],
      admin: ["read", "write", "exec", "attach", "admin"],
    } as const;
    for (const [scope, routes] of Object.entries(allowed)) {
      const headers = { "x-api-key": server.newKey({ scopes: [scope as keyof typeof allowed] }) };
      for (const route of SCOPES) {
        const { status, json } = await server.call(`GET /scoped/${route}`, headers);
        const isAllowed = (routes as readonly string[]).includes(route);
        assert.equal(status, isAllowed ? 204 : 403, `${scope} at ${route}`);
        if (!isAllowed) assert.match(json.message, new RegExp(`scope '${route}'`));
      }
      const made = await server.call("POST /v2/sandboxes", headers, { templateID: "base" });
      assert.equal(made.status, scope === "read" ? 403 : 201);
    }
  });
});

describe("rate limits", () => {
  it("count clients by address and keys by name, and answer with the time to wait", async () => {
    const rateLimits = { perAddress: { requests: 6, per: "1h" }, perKey: { requests: 2, per: "1h" } };
    const http = { trustedProxies: ["127.0.0.1"], drainTimeout: "200ms" };
    await using server = await startAccessServer({ settings: { rateLimits }, server: { http } });
    const key = server.newKey();
    const from = (address: string, headers: Record<string, string> = {}) =>
      server.call("GET /sandboxes", { "x-forwarded-for": address, ...headers });
    const statuses = async (count: number, ask: () => ReturnType<typeof from>) => {
      const seen: number[] = [];
      for (let asked = 0; asked < count; asked += 1) seen.push((await ask()).status);
      return seen;
    };
    assert.deepEqual(await statuses(3, () => from("192.0.2.1", { "x-api-key": key })), [200, 200, 429]);
    assert.deepEqual(await statuses(1, () => from("192.0.2.9", { "x-api-key": key })), [429]);
    const other = server.newKey();
    assert.deepEqual(await statuses(1, () => from("192.0.2.9", { "x-api-key": other })), [200]);
    // The limit is per tenant: a key of the same name in another tenant has its own.
    const theirs = server.newKey({ tenant: "other", name: server.keys.list().at(-1)?.name });
    assert.deepEqual(await statuses(3, () => from("192.0.2.8", { "x-api-key": theirs })), [200, 200, 429]);
    // Requests with and without a key count together: three came before.
    assert.deepEqual(await statuses(4, () => from("192.0.2.1")), [401, 401, 401, 429]);
    const refused = await from("192.0.2.1");
    assert.match(refused.headers.get("retry-after") ?? "", /^\d+$/);
    assert.deepEqual(refused.json, { code: 429, message: "too many requests" });
    assert.deepEqual(await statuses(1, () => from("192.0.2.2")), [401]);
    // One IPv6 client has a whole /64.
    let count = 0;
    const seen = await statuses(7, () => from(`2001:db8:1:2::${(count += 1)}`));
    assert.deepEqual(seen, [401, 401, 401, 401, 401, 401, 429]);
    assert.deepEqual(await statuses(1, () => from("2001:db8:1:3::1")), [401]);
  });

  it("ignore X-Forwarded-For of untrusted peers", async () => {
    const rateLimits = { perAddress: { requests: 2, per: "1h" } };
    await using server = await startAccessServer({ settings: { rateLimits } });
    const statuses: number[] = [];
    for (let asked = 1; asked <= 3; asked += 1) {
      const headers = { "x-forwarded-for": `192.0.2.${asked}` };
      statuses.push((await server.call("GET /sandboxes", headers)).status);
    }
    assert.deepEqual(statuses, [401, 401, 429]);
  });
});

describe("a server that others can reach", () => {
  const server = { listeners: { api: { host: "0.0.0.0", port: 0 } } };

  it("starts with access, also before there is a key", async () => {
    await using running = await startAccessServer({ server });
    assert.equal((await running.call("GET /sandboxes")).status, 401);
  });

  it("takes no key that can be guessed, and no keys of a provider over plain http", async () => {
    for (const settings of [
      { apiKeys: ["local"] },
      { apiKeys: [""] },
      { jwt: { jwksUrl: "http://provider.example/keys" } },
      { quotas: { everybody: { sandboxs: 1 } } },
    ]) {
      await assert.rejects(startAccessServer({ settings }), /plugins\.access|unknown key/);
    }
  });
});
