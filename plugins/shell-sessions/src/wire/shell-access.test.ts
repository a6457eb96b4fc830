import assert from "node:assert/strict";
import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { buffer } from "node:stream/consumers";
import { after, before, describe, it } from "node:test";
import type { LiveSandbox } from "@coppice/core";
import { type ShellServer, startShellServer } from "../testing/shell-server.js";

const PORT_HEADER = { "e2b-sandbox-port": "3000" };

describe("access to shell sessions", { timeout: 120_000 }, () => {
  let shell: ShellServer;
  let secured: LiveSandbox;
  let token: string;

  before(async () => {
    shell = await startShellServer();
    secured = await shell.server.sandboxes.create({ template: "base", timeoutMs: 600_000, secure: true });
    token = secured.record.accessToken ?? "";
    assert.notEqual(token, "");
  });
  after(() => shell[Symbol.asyncDispose]());

  const ask = async (path: string, headers: Readonly<Record<string, string>> = {}) => {
    const answer = await fetch(shell.server.url + path, { headers });
    return { status: answer.status, text: await answer.text() };
  };
  const statusAt = async (path: string, headers?: Readonly<Record<string, string>>) =>
    (await ask(path, headers)).status;
  const below = (id: string) => `/sandboxes/${id}/shell`;

  it("takes the sandbox's token by each way, at its path and at its port", async () => {
    const addressed = { ...PORT_HEADER, "e2b-sandbox-id": secured.record.id };
    const path = below(secured.record.id);
    for (const [base, headers] of [
      ["", addressed],
      [path, {}],
    ] as const) {
      const withToken = { ...headers, "x-access-token": token };
      assert.equal(await statusAt(`${base}/api/ping`, withToken), 200);
      assert.equal(await statusAt(`${base}/`, withToken), 200);
      assert.equal(await statusAt(`${base}/api/ping`, { ...headers, authorization: `Bearer ${token}` }), 200);
      assert.equal(await statusAt(`${base}/t/${token}/api/ping`, headers), 200);
      for (const wrong of [{}, { "x-access-token": "x" }, { authorization: "Bearer x" }])
        assert.notEqual(await statusAt(`${base}/api/ping`, { ...headers, ...wrong }), 200);
      assert.notEqual(await statusAt(`${base}/t/x/api/ping`, headers), 200);
    }
    assert.equal(await statusAt(path, { "x-access-token": token }), 200);
  });

  it("answers an unknown sandbox, and each route of a foreign one, as a wrong token", async () => {
    const unknown = "imadeup00000000000000";
    const of = async (id: string, path: string, headers = {}) => {
      const { status, text } = await ask(below(id) + path, headers);
      const { timestamp: _timestamp, ...body } = JSON.parse(text) as Record<string, unknown>;
      return [status, body];
    };
    for (const path of ["/", "/api/ping", "/api/process/list", "/api/none", "/t/x/api/ping"]) {
      for (const headers of [{}, { "x-access-token": "x" }, { authorization: "Bearer x" }]) {
        const foreign = await of(secured.record.id, path, headers);
        assert.deepEqual(foreign, await of(unknown, path, headers), path);
        assert.equal(foreign[0], 404);
      }
    }
    // The headers name the client's own sandbox, the path another.
    const own = { ...PORT_HEADER, "e2b-sandbox-id": shell.sandbox.record.id };
    assert.equal((await of(secured.record.id, "/api/ping", own))[0], 404);
  });

  it("is not served on the operator's listener", async () => {
    const path = `${below(secured.record.id)}/api/ping`;
    const headers = { "x-access-token": token };
    assert.equal((await fetch(shell.server.url + path, { headers })).status, 200);
    assert.equal((await fetch(shell.server.urls["ops"] + path, { headers })).status, 404);
  });

  it("refuses pages of other web sites where there is no token", async () => {
    const path = `${below(shell.sandbox.record.id)}/api/ping`;
    assert.equal(await statusAt(path), 200);
    assert.equal(await statusAt(path, { origin: "https://elsewhere.example" }), 403);
  });

  it("refuses them also where the listener cannot tell, behind a proxy with a public name, and runs nothing", async () => {
    await using open = await startShellServer({}, [], { http: { allowedHosts: ["public.example"] } });
    const execute = async (headers: Readonly<Record<string, string>>) => {
      const body = JSON.stringify({ command: "touch made" });
      const sent = request(`${open.url}/api/execute`, {
        method: "POST",
        headers: { host: "public.example", ...headers },
      });
      sent.end(body);
      const [answer] = (await once(sent, "response")) as [IncomingMessage];
      return { status: answer.statusCode, text: (await buffer(answer)).toString() };
    };
    const { status, text } = await execute({ origin: "https://evil.example" });
    assert.equal(status, 403, text);
    assert.match(text, /it is not for web pages/);
    const { data } = await open.json("GET", "/api/session/list");
    assert.deepEqual(data, []);
    // A program that is no page.
    assert.equal((await execute({})).status, 200);
  });

  it("takes `Authorization` for a session where it is no token", async () => {
    const execute = async (id: string, headers: Readonly<Record<string, string>>) => {
      const answer = await fetch(`${shell.server.url}${below(id)}/api/execute`, {
        method: "POST",
        headers,
        body: JSON.stringify({ command: "true" }),
      });
      assert.equal(answer.status, 200, await answer.text());
    };
    const sessionsOf = async (id: string) => {
      const { text } = await ask(`${below(id)}/api/session/list`, { "x-access-token": token });
      return (JSON.parse(text) as { readonly data: readonly string[] }).data;
    };
    await execute(shell.sandbox.record.id, { authorization: "Bearer named" });
    await execute(shell.sandbox.record.id, { "x-session-id": "other" });
    assert.deepEqual(await sessionsOf(shell.sandbox.record.id), ["named", "other"]);
    await execute(secured.record.id, { authorization: `Bearer ${token}` });
    await execute(secured.record.id, { "authorization": "Bearer named", "x-access-token": token });
    assert.deepEqual(await sessionsOf(secured.record.id), ["default", "named"]);
  });

  it("leaves path tokens and `Authorization` alone where settings say so", async () => {
    await using strict = await startShellServer({ pathTokens: false, authorization: "session" });
    const sandbox = await strict.server.sandboxes.create({
      template: "base",
      timeoutMs: 600_000,
      secure: true,
    });
    const { id, accessToken = "" } = sandbox.record;
    const base = strict.server.url + below(id);
    const status = async (path: string, headers = {}) => (await fetch(base + path, { headers })).status;
    assert.equal(await status("/api/ping", { "x-access-token": accessToken }), 200);
    assert.equal(await status("/api/ping", { authorization: `Bearer ${accessToken}` }), 404);
    assert.equal(await status(`/t/${accessToken}/api/ping`), 404);
  });
});
