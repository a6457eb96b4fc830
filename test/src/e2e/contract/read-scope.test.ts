import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { fill, keyOf, sampledRoutes } from "./route-samples.js";
import { answerOf, type Client, startTenantServer, type TenantServer } from "./tenant-server.js";

/** Routes other than GET that only read. */
const READS: ReadonlySet<string> = new Set(["POST /v1/sandboxes/:id/files/export"]);
/** Its link has the permission, and a key is worth nothing to it. */
const BY_LINK = "PUT /templates/uploads/:ticket";
/** A field or a segment of a URL whose value is long enough for a secret. */
const SECRET = /"[^"]*(token|secret|signature|password)[^"]*":"[^"]{16,}"|\/uploads\/[\w.-]{16,}/i;

describe("a key that may only read", () => {
  let tenants: TenantServer;
  let owner: Client;
  let reader: Client;

  before(async () => {
    tenants = await startTenantServer();
    owner = tenants.client({ tenant: "acme" });
    reader = tenants.client({ tenant: "acme", scopes: ["read"] });
  });

  after(() => tenants[Symbol.asyncDispose]());

  it("is told no secret of its tenant by any route, and changes nothing", async () => {
    const { server } = tenants;
    const routes = server.routes.filter(({ surface }) => surface === "api");
    let served = 0;
    for (const [route, { names: make, body, path = route.path }] of sampledRoutes(routes)) {
      const what = keyOf(route);
      if (what === BY_LINK) continue;
      const names = await make?.(owner);
      if (make !== undefined && names === undefined) continue;
      const before = server.sandboxes.list().map(({ record }) => record);
      const filled = (text: string): string => (names === undefined ? text : fill(text, names, 0));
      const parts = { path: filled(path), body: body && filled(body) };
      const answer = await answerOf(server.url, route, reader, parts);
      const isRefused = /^\[403,|^HTTP\/1\.1 403/.test(answer);
      if (route.kind === "upgrade" || (route.method !== "GET" && !READS.has(what)))
        assert.ok(isRefused, `${what} is served: ${answer}`);
      else if (!isRefused) served += 1;
      const plain = answer.replaceAll('\\"', '"');
      assert.doesNotMatch(plain, SECRET, what);
      for (const { accessToken, trafficAccessToken } of before)
        for (const token of [accessToken, trafficAccessToken])
          assert.ok(token === undefined || !answer.includes(token), `${what} tells a token: ${answer}`);
      assert.deepEqual(
        server.sandboxes.list().map(({ record }) => record),
        before,
        `${what} has changed a sandbox`,
      );
    }
    assert.ok(served > 20, `it reads: ${served} routes`);
  });

  it("leaves paused sandboxes asleep, also those that requests resume", async (test) => {
    const { id } = await owner.createSandbox({ autoPause: true, autoResume: { enabled: true } });
    const paused = await owner.ask("POST", `/sandboxes/${id}/pause`);
    if (paused.status === 400) {
      test.skip(paused.text);
      return;
    }
    assert.equal(paused.status, 204, paused.text);
    for (const [method, path] of [
      ["GET", `/sandboxes/${id}`],
      ["GET", `/v1/sandboxes/${id}`],
      ["GET", `/v1/sandboxes/${id}/commands`],
      ["POST", `/v1/sandboxes/${id}/files/export`],
    ] as const) {
      const answer = await reader.ask(method, path, method === "POST" ? "{}" : undefined);
      const state = tenants.server.sandboxes.get(id).record.state;
      assert.equal(state, "paused", `${method} ${path} answers ${answer.status} ${answer.text}`);
    }
  });
});
