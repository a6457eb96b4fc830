import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { exchange } from "../../harness/clients/exchange.js";
import { fill, keyOf, MADE_UP, sampledRoutes } from "./route-samples.js";
import { answerOf, type Client, startTenantServer, type TenantServer } from "./tenant-server.js";

/** Routes of a sandbox without a token: E2B's clients send none there. */
const OPEN: ReadonlySet<string> = new Set(["envd GET /health"]);

describe("what belongs to another tenant", () => {
  let tenants: TenantServer;
  let server: TenantServer["server"];
  let owner: Client;
  let stranger: Client;

  before(async () => {
    // Each of two tenants gets a part, and every route makes a sandbox or two.
    tenants = await startTenantServer({ server: { sandboxes: { maximum: 400 } } });
    ({ server } = tenants);
    owner = tenants.client({ tenant: "acme" });
    stranger = tenants.client({ tenant: "other" });
  });

  after(() => tenants[Symbol.asyncDispose]());

  it("is answered on every route as what never was, and to its owner otherwise", async () => {
    const routes = server.routes.filter(({ surface }) => surface === "api");
    const asked = sampledRoutes(routes);
    for (const [route, { names: make, body, path = route.path }] of asked) {
      if (make === undefined) {
        const mine = await owner.createSandbox();
        const answer = await answerOf(server.url, route, stranger, { path, body });
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
              await answerOf(server.url, route, stranger, {
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
        await answerOf(server.url, route, stranger, {
          path: fill(path, names, 1),
          body: body && fill(body, names, 1),
        }),
      );
      const served = anonymous(
        await answerOf(server.url, route, owner, {
          path: fill(path, names, 0),
          body: body && fill(body, names, 0),
        }),
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
      if (method === "CONNECT" || method === "OPTIONS") continue;
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
            "authorization": stranger.authorization,
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
            "authorization": stranger.authorization,
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
