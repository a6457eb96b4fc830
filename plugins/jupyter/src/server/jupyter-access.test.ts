import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import type { LiveSandbox } from "@coppice/core";
import type { CodeServer } from "../testing/code-server.js";
import { JupyterServer, type KernelModel } from "../testing/jupyter-server.js";
import { JupyterSocket } from "../testing/jupyter-socket.js";

interface SessionModel {
  readonly id: string;
  readonly kernel: { readonly id: string };
}

let served: JupyterServer;
let own: CodeServer;
let sandbox: LiveSandbox;
let token: string;

before(async () => {
  served = await JupyterServer.start();
  own = served.code;
  ({ sandbox, token } = served);
});

after(() => served[Symbol.asyncDispose]());

const api: JupyterServer["api"] = (...words) => served.api(...words);
const root: JupyterServer["root"] = (...words) => served.root(...words);
const connect: JupyterServer["connect"] = (...words) => served.connect(...words);

describe("access", () => {
  it("the sandbox's token opens it, in a header or in the query; nothing else does", async () => {
    const good: readonly RequestInit["headers"][] = [
      { "x-access-token": token },
      { authorization: `token ${token}` },
      { authorization: `Bearer ${token}` },
    ];
    for (const headers of good)
      assert.equal((await fetch(`${root()}/api/status`, { headers: headers ?? {} })).status, 200);
    assert.equal((await fetch(`${root()}/api/status?token=${token}`)).status, 200);
    for (const query of ["", "?token=", `?token=${token}x`, `?TOKEN=${token}`])
      assert.equal((await fetch(`${root()}/api/status${query}`)).status, 404, query);
    assert.equal(
      (await fetch(`${root()}/api/status`, { headers: { authorization: `Basic ${token}` } })).status,
      404,
    );
    // A wrong token in the header is refused, even with the right one in the query.
    assert.equal(
      (await fetch(`${root()}/api/status?token=${token}`, { headers: { "x-access-token": "x" } })).status,
      404,
    );
  });

  it("a wrong token and a sandbox that does not exist look the same, by path and by header", async () => {
    const look = async (url: string, headers: Record<string, string>): Promise<unknown> => {
      const response = await fetch(url, { headers });
      return {
        status: response.status,
        type: response.headers.get("content-type"),
        body: await response.text(),
      };
    };
    assert.deepEqual(
      await look(`${root()}/api/kernels`, {}),
      await look(`${root("inothing")}/api/kernels`, {}),
    );
    const byHeader = (id: string): Promise<unknown> =>
      look(`${own.server.url}/api/kernels`, { "e2b-sandbox-id": id, "e2b-sandbox-port": "8888" });
    const unknown = JSON.stringify(await byHeader("inothing")).replaceAll("inothing", sandbox.record.id);
    assert.equal(JSON.stringify(await byHeader(sandbox.record.id)), unknown);
    await assert.rejects(
      JupyterSocket.open(`${root().replace(/^http/, "ws")}/api/kernels/x/channels`),
      /404/,
    );
    await assert.rejects(
      JupyterSocket.open(`${root("inothing").replace(/^http/, "ws")}/api/kernels/x/channels`),
      /404/,
    );
  });

  it("port 8888 of a sandbox answers the same, without the path", async () => {
    const headers = {
      "e2b-sandbox-id": sandbox.record.id,
      "e2b-sandbox-port": "8888",
      "x-access-token": token,
    };
    const response = await fetch(`${own.server.url}/api/kernels`, { headers });
    assert.deepEqual(await response.json(), await (await api("/api/kernels")).json());
    const other = await own.create();
    const crossed = await fetch(`${root(other.live.record.id)}/api/kernels`, { headers });
    assert.equal(crossed.status, 404, "a path and headers that name different sandboxes");
    await own.server.sandboxes.kill(other.live.record.id);
  });

  it("a sandbox without a token is open to programs, not to web pages from elsewhere", async () => {
    const open = await own.create();
    const url = `${root(open.live.record.id)}/api/kernelspecs`;
    assert.equal((await fetch(url)).status, 200);
    assert.equal((await fetch(url, { headers: { origin: "http://localhost:8000" } })).status, 200);
    assert.equal((await fetch(url, { headers: { origin: "https://elsewhere.example" } })).status, 403);
    await own.server.sandboxes.kill(open.live.record.id);
  });
});

describe("bad requests", () => {
  it("each is a 4xx, and the server goes on", async () => {
    const cases: readonly (readonly [string, string, string | undefined, number])[] = [
      ["GET", "/api/kernels/none", undefined, 404],
      ["DELETE", "/api/kernels/none", undefined, 404],
      ["POST", "/api/kernels/none/interrupt", undefined, 404],
      ["POST", "/api/kernels/none/restart", undefined, 404],
      ["POST", "/api/kernels", "{", 400],
      ["POST", "/api/kernels", "[]", 400],
      ["POST", "/api/kernels", '{"name": 1}', 400],
      ["POST", "/api/kernels", `{"name": "${"x".repeat(300)}"}`, 400],
      ["POST", "/api/kernels", `{"path": "a\\u0000b/c"}`, 400],
      ["POST", "/api/kernels", `{"x": "${"x".repeat(2_000_000)}"}`, 413],
      ["POST", "/api/kernels", '{"name": "cobol"}', 501],
      ["POST", "/api/sessions", "{}", 400],
      ["POST", "/api/sessions", '{"path": "a.ipynb", "kernel": {"id": "none"}}', 404],
      ["GET", "/api/sessions/none", undefined, 404],
      ["PATCH", "/api/sessions/none", "{}", 404],
      ["DELETE", "/api/sessions/none", undefined, 404],
      ["GET", "/api/kernelspecs/none", undefined, 404],
      ["PUT", "/api/kernels", "{}", 405],
      ["GET", "/api/contents", undefined, 404],
    ];
    for (const [method, path, body, status] of cases) {
      const response = await api(path, { method, ...(body !== undefined && { body }) });
      const text = await response.text();
      assert.equal(response.status, status, `${method} ${path} ${body?.slice(0, 40)}: ${text.slice(0, 200)}`);
      assert.equal(typeof (JSON.parse(text) as { message: unknown }).message, "string");
    }
    assert.equal((await api("/api/status")).status, 200);
  });

  it("sessions beyond the limit are refused and leave no kernel", async () => {
    const open = (path: string): Promise<Response> =>
      api("/api/sessions", { method: "POST", body: JSON.stringify({ path }) });
    const [first, second, third] = [await open("a.ipynb"), await open("b.ipynb"), await open("c.ipynb")];
    assert.deepEqual([first.status, second.status, third.status], [201, 201, 429]);
    const again = (await (await open("a.ipynb")).json()) as { id: string };
    const sessions = (await (await api("/api/sessions")).json()) as { id: string }[];
    assert.deepEqual(sessions.map(({ id }) => id).includes(again.id), true);
    assert.equal(sessions.length, 2);
    for (const { id } of sessions)
      assert.equal((await api(`/api/sessions/${id}`, { method: "DELETE" })).status, 204);
  });

  it("concurrent sessions have one kernel each, and one beyond the limit has none", async () => {
    const kernels = async (): Promise<readonly string[]> =>
      ((await (await api("/api/kernels")).json()) as KernelModel[]).map(({ id }) => id);
    const before = await kernels();
    const paths = ["a.ipynb", "b.ipynb", "a.ipynb", "c.ipynb", "a.ipynb"];
    const opened = await Promise.all(
      paths.map((path) => api("/api/sessions", { method: "POST", body: JSON.stringify({ path }) })),
    );
    assert.deepEqual(
      opened.map(({ status }) => status),
      [201, 201, 201, 429, 201],
    );
    const [a, b, again] = (await Promise.all(opened.map((response) => response.json()))) as SessionModel[];
    assert.ok(a !== undefined && b !== undefined);
    assert.deepEqual(again, a);
    assert.deepEqual((await kernels()).toSorted(), [...before, a.kernel.id, b.kernel.id].toSorted());
    for (const { id } of [a, b]) await api(`/api/sessions/${id}`, { method: "DELETE" });
    assert.deepEqual(await kernels(), before);
  });

  it("a session that gets another kernel ends its old one, unless another session uses it", async () => {
    const json = async (path: string, method: string, body: object): Promise<SessionModel> =>
      (await (await api(path, { method, body: JSON.stringify(body) })).json()) as SessionModel;
    const isThere = async (id: string): Promise<boolean> => (await api(`/api/kernels/${id}`)).status === 200;
    const one = await json("/api/sessions", "POST", { path: "one.ipynb" });
    const other = await json("/api/sessions", "POST", { path: "other.ipynb", kernel: { id: one.kernel.id } });
    const shared = one.kernel.id;
    const changed = await json(`/api/sessions/${one.id}`, "PATCH", { kernel: { name: "python3" } });
    assert.notEqual(changed.kernel.id, shared);
    assert.ok(await isThere(shared), "the other session uses it");
    const renamed = await json(`/api/sessions/${one.id}`, "PATCH", { path: "new.ipynb" });
    assert.equal(renamed.kernel.id, changed.kernel.id);
    const taken = await json(`/api/sessions/${one.id}`, "PATCH", { kernel: { id: shared } });
    assert.deepEqual([taken.kernel.id, await isThere(changed.kernel.id)], [shared, false]);
    const again = await json(`/api/sessions/${one.id}`, "PATCH", { kernel: { id: shared } });
    assert.ok(again.kernel.id === shared && (await isThere(shared)));
    for (const { id } of [one, other]) await api(`/api/sessions/${id}`, { method: "DELETE" });
    assert.equal(await isThere(shared), false);
  });

  it("WebSockets: an unknown kernel, a strange session id, one client too many", async () => {
    await using kernel = await served.startKernel();
    await assert.rejects(connect("none"), /404/);
    await assert.rejects(connect(kernel.id, "a b"), /400/);
    await assert.rejects(connect(kernel.id, "x".repeat(300)), /400/);
    using _first = await connect(kernel.id);
    using _second = await connect(kernel.id);
    using _third = await connect(kernel.id, "third");
    await assert.rejects(connect(kernel.id), /429/);
    using _again = await connect(kernel.id, "third");
  });
});
