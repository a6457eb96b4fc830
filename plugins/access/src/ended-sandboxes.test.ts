import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { startAccessServer } from "./testing/access-server.js";

const MADE_UP = "imadeup00000000000000";
const END = "at 2026-01-01T00:01:00.000Z";

async function start() {
  const server = await startAccessServer();
  const [own, sibling, foreign] = [{}, { name: "second" }, { tenant: "other" }].map((wanted) =>
    server.newKey(wanted),
  );
  assert.ok(own && sibling && foreign);
  const ask = (route: string, key: string, body?: unknown) => server.call(route, { "x-api-key": key }, body);
  return {
    server,
    keys: { own, sibling, foreign },
    ask,
    create: async (fields: object = {}): Promise<{ readonly id: string; readonly token: string }> => {
      const { status, json } = await ask("POST /v2/sandboxes", own, { templateID: "base", ...fields });
      assert.equal(status, 201, JSON.stringify(json));
      return { id: json.sandboxID, token: json.envdAccessToken };
    },
    /** Answer of the edge to a request for that sandbox with that token. */
    edge: async (id: string, token?: string): Promise<string> => {
      const { status, json } = await server.call("GET /health", {
        "e2b-sandbox-id": id,
        "e2b-sandbox-port": "49983",
        ...(token !== undefined && { "x-access-token": token }),
      });
      assert.equal(status, 502);
      assert.equal(json.code, 502);
      return json.message as string;
    },
  };
}

describe("a sandbox that has ended", () => {
  it("reports how it ended to its tenant, and is unknown to all others", async () => {
    const { server, keys, ask, create, edge } = await start();
    await using _server = server;
    const killed = await create();
    const late = await create({ timeout: 60 });
    await server.clock.advance(60_000);
    assert.equal((await ask(`DELETE /sandboxes/${killed.id}`, keys.own)).status, 204);
    const routes = (id: string) =>
      [
        [`GET /sandboxes/${id}`],
        [`DELETE /sandboxes/${id}`],
        [`POST /sandboxes/${id}/timeout`, { timeout: 60 }],
        [`POST /v2/sandboxes/${id}/connect`, {}],
        [`GET /sandboxes/${id}/metrics`],
      ] as const;
    for (const [{ id, token }, how] of [
      [killed, "it was killed"],
      [late, "its time was up"],
    ] as const) {
      for (const [route, body] of routes(id)) {
        const unknown = await ask(route.replace(id, MADE_UP), keys.foreign, body);
        const told = `Sandbox "${id}" doesn't exist or you don't have access to it; sandbox not found`;
        for (const key of [keys.own, keys.sibling]) {
          const { status, json } = await ask(route, key, body);
          assert.deepEqual([status, json], [404, { code: 404, message: `${told}: ${how} ${END}` }], route);
        }
        const { status, json } = await ask(route, keys.foreign, body);
        assert.deepEqual([status, json], [404, { code: 404, message: told }], route);
        assert.deepEqual(unknown.json.message.replace(MADE_UP, id), told, route);
      }
      assert.equal(await edge(id, token), `The sandbox was not found: ${how} ${END}`);
      for (const other of [undefined, "", "0".repeat(token.length), late.token + killed.token]) {
        assert.equal(await edge(id, other), "The sandbox was not found", "not the token of it");
      }
    }
    assert.equal(await edge(MADE_UP, killed.token), "The sandbox was not found");
    assert.equal(await edge(killed.id, late.token), "The sandbox was not found");
  });

  it("reports nothing at the edge without a token, where no client can prove ownership", async () => {
    const { server, keys, ask, edge } = await start();
    await using _server = server;
    const { json } = await ask("POST /sandboxes", keys.own, { templateID: "base" });
    await ask(`DELETE /sandboxes/${json.sandboxID}`, keys.own);
    assert.equal(await edge(json.sandboxID, "x"), "The sandbox was not found");
  });
});
