import assert from "node:assert/strict";
import { once } from "node:events";
import { request } from "node:http";
import { it } from "node:test";
import { SandboxError } from "../../kernel/errors.js";
import { definePlugin } from "../../plugin/plugin.js";
import { type Answered, type Scope, noteSandbox, requestOf } from "./surface-request.js";
import { Sandboxes } from "../../sandbox/life/sandboxes.js";
import { greetingSocket, HANDSHAKE } from "../../testing/greeting-socket.js";
import { memoryBackend } from "../../testing/memory-backend.js";
import { startTestServer } from "../../testing/start-test-server.js";
import { permit, sandboxesOf, tenantOf } from "./permit.js";

/** A plugin with a route of each kind, guarded by the header `x-scopes`, and the recorded answers. */
function observed() {
  const answers: (Answered & { readonly who: string | undefined })[] = [];
  const plugin = definePlugin({
    name: "observed",
    requires: { sandboxes: Sandboxes },
    setup(plugin, { sandboxes }) {
      plugin.guard("api", ({ headers }) => {
        const scopes = headers["x-scopes"];
        if (scopes === undefined) throw new SandboxError("access_token_invalid", "who are you?");
        if (scopes === "") return;
        return { tenant: "acme", name: "tester", scopes: new Set(String(scopes).split(",") as Scope[]) };
      });
      plugin.observe("api", (asked, answered) => answers.push({ ...answered, who: asked.principal?.name }));
      const api = plugin.http("api");
      api.get("/plain/:name", (ctx) => {
        ctx.body = { tenant: tenantOf(ctx), own: sandboxesOf(ctx, sandboxes).list().length };
      });
      api.post("/plain/:name", (ctx) => {
        noteSandbox(ctx, "made");
        ctx.status = 201;
      });
      api.post("/exec", permit("exec"), (ctx) => {
        ctx.body = requestOf(ctx).principal?.name ?? "nobody";
      });
      api.all("/admin", permit("admin"), (ctx) => {
        ctx.status = 204;
      });
      plugin.webSocket("api", ["/socket"], greetingSocket);
      plugin.http("envd").get("/others", (ctx) => {
        ctx.body = sandboxesOf(ctx, sandboxes).list().length;
      });
    },
  });
  return { plugin, answers };
}

it("a route requires its scope, or that of its method; admin includes all, and no authentication, too", async () => {
  const { plugin, answers } = observed();
  await using server = await startTestServer({ plugins: [[memoryBackend()], [plugin]] });
  const routes = {
    "GET /plain/x": ["read", 200, "/plain/:name"],
    "HEAD /plain/x": ["read", 200, "/plain/:name"],
    "POST /plain/x": ["write", 201, "/plain/:name"],
    "POST /PLAIN/x/": ["write", 201, "/plain/:name"],
    "POST /exec": ["exec", 200, "/exec"],
    "GET /admin": ["admin", 204, "/admin"],
    "DELETE /admin": ["admin", 204, "/admin"],
    "UPGRADE /socket": ["attach", 101, "/socket"],
  } as const;
  for (const scopes of ["read", "write", "exec", "attach", "admin", "read,write", "exec,attach", ""]) {
    for (const [route, [needed, success, pattern]] of Object.entries(routes)) {
      const [method = "", path = ""] = route.split(" ");
      const given: readonly string[] = scopes.split(",");
      const isAllowed = scopes === "" || given.includes(needed) || given.includes("admin");
      const expected = isAllowed ? success : 403;
      const told = `${route} with '${scopes}'`;
      assert.equal(await statusOf(server.url, { method, path, scopes }), expected, told);
      const isMaking = /^POST .plain/i.test(route);
      const who = scopes === "" ? undefined : "tester";
      assert.deepEqual(
        answers.at(-1),
        { status: expected, route: pattern, sandboxId: isMaking && isAllowed ? "made" : undefined, who },
        told,
      );
    }
  }
  answers.length = 0;
  assert.equal(await statusOf(server.url, { method: "GET", path: "/plain/x" }), 401);
  assert.equal(await statusOf(server.url, { method: "GET", path: "/nowhere", scopes: "read" }), 404);
  assert.equal(await statusOf(server.url, { method: "UPGRADE", path: "/nowhere", scopes: "read" }), 404);
  assert.deepEqual(
    answers.map(({ status, route, who }) => [status, route, who]),
    [
      [401, "none", undefined],
      [404, "none", "tester"],
      [404, "none", "tester"],
    ],
  );
});

it("a router with a guard of its own has no other, and is the only one that has it", async () => {
  const refuse = (): never => {
    throw new SandboxError("access_token_invalid", "not so");
  };
  const plugin = definePlugin({
    name: "linked",
    setup(plugin) {
      plugin.guard("api", refuse);
      plugin.http("api").get("/linked/:secret", (ctx) => void (ctx.body = "guarded"));
      const own = plugin.http("api", {
        guard: ({ url }) => {
          if (url.pathname !== "/linked/right") refuse();
          return { tenant: "acme", name: "link", scopes: new Set<Scope>(["write"]) };
        },
      });
      own.put("/linked/:secret", (ctx) => void (ctx.body = tenantOf(ctx)));
      own.delete("/linked/:secret", permit("exec"), (ctx) => void (ctx.body = "done"));
    },
  });
  await using server = await startTestServer({ plugins: [[plugin]] });
  const put = await fetch(`${server.url}/linked/right`, { method: "PUT" });
  assert.deepEqual([put.status, await put.text()], [200, "acme"]);
  for (const [method, path, status] of [
    ["PUT", "/linked/wrong", 401],
    ["PUT", "/linked/right/more", 401],
    ["DELETE", "/linked/right", 403],
    ["GET", "/linked/right", 401],
    ["POST", "/linked/right", 401],
    ["PUT", "/elsewhere", 401],
  ] as const)
    assert.equal(await statusOf(server.url, { method, path }), status, `${method} ${path}`);
});

it("a request acts for its tenant, or for the default one; one addressed to a sandbox sees no others", async () => {
  const { plugin } = observed();
  await using server = await startTestServer({ plugins: [[memoryBackend()], [plugin]] });
  const wanted = { template: "base", timeoutMs: 60_000, secure: false };
  await server.sandboxes.of("acme").create(wanted);
  await server.sandboxes.of("acme").create(wanted);
  const { record } = await server.sandboxes.create(wanted);
  const plain = async (scopes: string): Promise<unknown> =>
    (await fetch(`${server.url}/plain/x`, { headers: { "x-scopes": scopes } })).json();
  assert.deepEqual(await plain("read"), { tenant: "acme", own: 2 });
  assert.deepEqual(await plain(""), { tenant: "default", own: 1 });
  const headers = { "e2b-sandbox-id": record.id, "e2b-sandbox-port": "49983" };
  assert.equal((await fetch(`${server.url}/others`, { headers })).status, 500);
});

async function statusOf(
  url: string,
  { method, path, scopes }: { readonly method: string; readonly path: string; readonly scopes?: string },
): Promise<number> {
  const isUpgrade = method === "UPGRADE";
  const outgoing = request(new URL(path, url), {
    method: isUpgrade ? "GET" : method,
    headers: {
      ...(scopes === undefined ? {} : { "x-scopes": scopes }),
      ...(isUpgrade ? HANDSHAKE : {}),
    },
  });
  outgoing.end();
  const answered = once(outgoing, "response").then(([incoming]) => {
    incoming.resume();
    return Number(incoming.statusCode);
  });
  const upgraded = once(outgoing, "upgrade").then(([incoming, socket]) => {
    socket.destroy();
    return Number(incoming.statusCode);
  });
  return Promise.race([answered, upgraded]);
}
