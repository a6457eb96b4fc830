import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { definePlugin, ENVD_PORT, type LiveSandbox, type SCOPES } from "@coppice/core";
import { startTestServer, type TestServer } from "@coppice/core/testing";
import commands from "@coppice/plugin-commands";
import localProcess from "@coppice/plugin-local-process";
import commandsV1 from "./index.js";

const MADE_UP = "01900000-0000-7000-8000-000000000000";

interface Answer {
  readonly command_id: string;
  readonly phase: string;
  readonly exit_code: number | null;
  readonly bytes: string;
  readonly next_cursor: number;
  readonly truncated_before?: number;
  readonly code: string;
  readonly request_id: string;
}

describe("/v1 commands", { timeout: 120_000 }, () => {
  let server: TestServer;
  let sandbox: LiveSandbox;
  let dataDir: string;

  const start = () =>
    startTestServer({
      dataDir,
      plugins: [
        [commands, {}],
        [commandsV1, { heartbeat: "100ms", maxListed: 50 }],
        [localProcess, {}],
      ],
    });
  before(async () => {
    dataDir = await mkdtemp(join(tmpdir(), "coppice-commands-v1-"));
    server = await start();
    sandbox = await server.sandboxes.create({ template: "base", timeoutMs: 120_000, secure: false });
  });
  after(async () => {
    await server.stop();
    await rm(dataDir, { recursive: true });
  });

  const ask = (path: string, init: RequestInit = {}, id = sandbox.record.id) =>
    fetch(`${server.url}/v1/sandboxes/${id}/commands${path}`, init);
  const json = async (path: string, init?: RequestInit) => (await (await ask(path, init)).json()) as Answer;
  const post = (body: unknown, headers: Record<string, string> = {}) =>
    ask("", { method: "POST", headers, body: typeof body === "string" ? body : JSON.stringify(body) });
  const run = async (script: string): Promise<string> => {
    const response = await post({ argv: ["/bin/sh", "-c", script], detach: true });
    assert.equal(response.status, 201);
    const started = (await response.json()) as Answer;
    assert.equal(started.phase, "running");
    return started.command_id;
  };
  const ended = async (id: string): Promise<Answer> => {
    for (;;) {
      const status = await json(`/${id}`);
      if (status.phase !== "running") return status;
      await delay(20);
    }
  };
  /** All pages of a log, joined. */
  const readAll = async (id: string, query = ""): Promise<Buffer> => {
    const isText = !query.includes("base64");
    const pages: Buffer[] = [];
    for (let cursor = 0; ;) {
      const page = await json(`/${id}/logs?cursor=${cursor}&stream=false${query}`);
      pages.push(Buffer.from(page.bytes, isText ? "utf8" : "base64"));
      if (page.next_cursor === cursor && page.phase !== "running") return Buffer.concat(pages);
      cursor = page.next_cursor;
    }
  };
  /** The events of a followed log, until its end. */
  const follow = async (id: string, query = "", headers: Record<string, string> = {}) => {
    const response = await ask(`/${id}/logs?follow=true${query}`, {
      headers: { accept: "text/event-stream", ...headers },
    });
    assert.match(response.headers.get("content-type") ?? "", /^text\/event-stream/);
    return eventsIn(await response.text());
  };

  it("are started at once, and described until and after their end", async () => {
    const id = await run("echo out; echo err >&2; exit 7");
    const status = await ended(id);
    assert.deepEqual([status.command_id, status.phase, status.exit_code], [id, "exited", 7]);
    assert.equal((await readAll(id)).toString().split("\n").toSorted().join(" "), " err out");
    const all = (await (await ask("")).json()) as readonly Answer[];
    assert.ok(all.some(({ command_id, phase }) => command_id === id && phase === "exited"));
  });

  it("get their arguments, variables and directory, and no shell reads them", async () => {
    const response = await post({
      argv: ["/usr/bin/env", "sh", "-c", 'pwd; echo "$A" "$1"', "sh", "$HOME; *"],
      env: { A: "b" },
      cwd: "/",
    });
    const { command_id: id } = (await response.json()) as Answer;
    await ended(id);
    assert.match((await readAll(id)).toString(), /\nb \$HOME; \*\n$/);
  });

  it("are killed with their group, once or again, and keep their log", async () => {
    const id = await run("echo begun; sleep 60 & sleep 60");
    while ((await json(`/${id}/logs`)).bytes === "") await delay(20);
    assert.equal((await json(`/${id}`)).phase, "running");
    for (let time = 0; time < 2; time++) {
      assert.equal((await ask(`/${id}`, { method: "DELETE" })).status, 204);
      assert.equal((await json(`/${id}`)).phase, "killed");
    }
    assert.equal((await readAll(id)).toString(), "begun\n");
  });

  it("have pages that split no character, count bytes, and are exact in base64", async () => {
    const text = "é😀x".repeat(200);
    const id = await run(`printf %s '${text}'; printf '\\377'`);
    await ended(id);
    assert.equal((await readAll(id, "&limit=5")).toString(), `${text}\ufffd`);
    const raw = await readAll(id, "&limit=7&encoding=base64");
    assert.ok(raw.equals(Buffer.concat([Buffer.from(text), Buffer.of(0xff)])));
    const last = await json(`/${id}/logs?cursor=999999`);
    assert.deepEqual([last.bytes, last.phase, last.exit_code], ["", "exited", 0]);
  });

  it("have pages for whose room the ones before made way", async () => {
    await using narrow = await startTestServer({
      plugins: [
        [commands, {}],
        [commandsV1, { maxPage: "64KiB", maxUnsentPages: "128KiB" }],
        [localProcess, {}],
      ],
    });
    const { record } = await narrow.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
    const base = `${narrow.url}/v1/sandboxes/${record.id}/commands`;
    const argv = ["sh", "-c", "yes | head -c 400000"];
    const started = await fetch(base, { method: "POST", body: JSON.stringify({ argv }) });
    const { command_id: id } = (await started.json()) as Answer;
    let bytes = 0;
    for (let pages = 0, cursor = 0; ; pages += 1) {
      const answer = await fetch(`${base}/${id}/logs?cursor=${cursor}&limit=65536`);
      assert.equal(answer.status, 200, `page ${pages}`);
      const page = (await answer.json()) as Answer;
      bytes += page.next_cursor - cursor;
      cursor = page.next_cursor;
      if (page.phase !== "running" && bytes === 400_000) break;
    }
  });

  it("are followed by events from any cursor, also while they run and after a broken connection", async () => {
    const id = await run("for i in 1 2 3 4 5; do echo line $i; sleep 0.25; done; exit 3");
    const client = new AbortController();
    const response = await ask(`/${id}/logs?follow=true`, { signal: client.signal });
    let part = "";
    for await (const chunk of response.body ?? []) {
      part += Buffer.from(chunk).toString();
      if (part.includes("line 2")) break;
    }
    client.abort();
    const { events: seen } = eventsIn(part);
    const lastId = seen.at(-1)?.id ?? "";
    const { events, comments } = await follow(id, "", { "last-event-id": lastId });
    const bytes = [...seen, ...events].map(({ data }) => data.bytes ?? "").join("");
    assert.equal(bytes, "line 1\nline 2\nline 3\nline 4\nline 5\n");
    assert.deepEqual(events.at(-1), { name: "end", id: "", data: { phase: "exited", exit_code: 3 } });
    assert.ok(comments.filter((text) => text === "heartbeat").length >= 2, comments.join());
    const again = await follow(id, "&cursor=7");
    assert.equal(again.events.map(({ data }) => data.bytes ?? "").join(""), bytes.slice(7));
  });

  it("do not wait for a follower that does not read", async () => {
    const id = await run("head -c 20000000 /dev/zero; echo done");
    const client = new AbortController();
    const stuck = await ask(`/${id}/logs?follow=true`, { signal: client.signal });
    assert.equal((await ended(id)).exit_code, 0);
    const lengths = await Promise.all(
      Array.from({ length: 5 }, async () => {
        const { events } = await follow(id, "&encoding=base64&limit=1000000");
        // Each follower may hold one.
        assert.ok(events.every(({ data }) => (data.bytes ?? "").length < 90_000));
        return Buffer.concat(events.map(({ data }) => Buffer.from(data.bytes ?? "", "base64"))).length;
      }),
    );
    assert.deepEqual(lengths, Array(5).fill(20_000_005));
    client.abort();
    await stuck.text().catch(() => undefined);
  });

  it("with an Idempotency-Key are started once, by requests at the same time, too", async () => {
    const key = { "idempotency-key": randomBytes(8).toString("hex") };
    const body = { argv: ["/bin/sh", "-c", "echo once"] };
    const answers = await Promise.all(
      Array.from({ length: 10 }, async () => (await (await post(body, key)).json()) as Answer),
    );
    const ids = new Set(answers.map(({ command_id }) => command_id));
    assert.equal(ids.size, 1);
    const [id = ""] = ids;
    await ended(id);
    assert.equal(((await (await post(body, key)).json()) as Answer).command_id, id);
    const other = await post({ argv: ["/bin/true"] }, key);
    assert.deepEqual([other.status, ((await other.json()) as Answer).code], [409, "idempotency_key_reused"]);
    assert.equal((await post(body, { "idempotency-key": "a b" })).status, 400);
    const one = { "idempotency-key": randomBytes(8).toString("hex") };
    const statuses = await Promise.all(
      ["echo 1", "echo 2"].map(
        async (script) => (await post({ argv: ["/bin/sh", "-c", script] }, one)).status,
      ),
    );
    assert.deepEqual(new Set(statuses), new Set([201, 409]));
  });

  it("refuse bad input with the contract's body, and start nothing", async () => {
    const count = async () => ((await (await ask("")).json()) as readonly Answer[]).length;
    const before = await count();
    const bodies = ["", "{", "[]", "null", "{}", { argv: [] }, { argv: [""] }, { argv: "ls" }, { argv: [5] }];
    for (const body of [
      ...bodies,
      { argv: ["a"], env: 1 },
      { argv: ["a\0"] },
      { argv: ["a"], cwd: "/none" },
    ]) {
      const response = await post(body);
      const answer = (await response.json()) as Answer;
      assert.equal(response.status, 400, JSON.stringify([body, answer]));
      assert.deepEqual(Object.keys(answer), ["code", "message", "request_id"]);
      assert.match(answer.code, /^[a-z_]+$/);
      assert.equal(answer.request_id, response.headers.get("x-request-id"));
    }
    const id = await run("true");
    for (const query of ["cursor=-1", "cursor=x", "limit=0", "limit=3", "encoding=utf-16", "follow=yes"]) {
      assert.equal((await ask(`/${id}/logs?${query}`)).status, 400, query);
    }
    for (const path of [`/${MADE_UP}`, "/1", "/x", `/${MADE_UP}/logs`, `/${MADE_UP}/logs?follow=true`]) {
      const response = await ask(path);
      assert.deepEqual(
        [response.status, typeof ((await response.json()) as Answer).code],
        [404, "string"],
        path,
      );
    }
    assert.equal((await ask(`/${MADE_UP}`, { method: "DELETE" })).status, 404);
    for (const name of ["imadeup00000000000000", "UPPER", "%00"]) {
      for (const path of ["", `/${id}`, `/${id}/logs`]) {
        assert.ok([400, 404].includes((await ask(path, {}, name)).status), `${name}${path}`);
      }
    }
    assert.equal(await count(), before + 1);
  });

  it("are the rows of the one table: commands of other surfaces are listed, followed and killed", async () => {
    const addressed = { "e2b-sandbox-id": sandbox.record.id, "e2b-sandbox-port": String(ENVD_PORT) };
    const other = await fetch(`${server.url}/commands`, {
      method: "POST",
      headers: addressed,
      body: JSON.stringify({ cmd: "echo theirs; exec sleep 60", tag: "theirs" }),
    });
    const theirs = await json("").then((all) => (all as unknown as readonly Answer[])[0]);
    assert.equal(theirs?.phase, "running");
    const id = theirs.command_id;
    while (!(await json(`/${id}/logs`)).bytes.includes("theirs\n")) await delay(20);
    const ours = await run("exec sleep 60");
    const listed = (await (
      await fetch(`${server.url}/commands`, { headers: addressed })
    ).json()) as readonly {
      readonly args: readonly string[];
    }[];
    assert.ok(listed.some(({ args }) => args.includes("exec sleep 60")));
    for (const command of [id, ours]) {
      assert.equal((await ask(`/${command}`, { method: "DELETE" })).status, 204);
      assert.equal((await json(`/${command}`)).phase, "killed");
    }
    assert.match(await other.text(), /"exit_code":-1\}\n$/);
  });

  it("keep a readable log when their sandbox, and then their server, have ended", async () => {
    const lost = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
    const id = lost.record.id;
    const response = await ask(
      "",
      { method: "POST", body: JSON.stringify({ argv: ["/bin/sh", "-c", "echo before; sleep 60"] }) },
      id,
    );
    const { command_id: command } = (await response.json()) as Answer;
    const page = async () => (await (await ask(`/${command}/logs`, {}, id)).json()) as Answer;
    while ((await page()).bytes === "") await delay(20);
    await server.sandboxes.kill(id);
    for (let time = 0; time < 2; time++) {
      const kept = await page();
      assert.deepEqual([kept.bytes, kept.phase, kept.exit_code], ["before\n", "lost", null]);
      assert.equal((await ask(`/${command}`, { method: "DELETE" }, id)).status, 204);
      if (time > 0) break;
      await server.stop();
      server = await start();
      sandbox = await server.sandboxes.create({ template: "base", timeoutMs: 120_000, secure: false });
    }
  });
});

it("/v1 commands need the scopes of the contract", async () => {
  const guard = definePlugin({
    name: "scopes",
    setup(plugin) {
      plugin.guard("api", ({ headers }) => ({
        tenant: "default",
        name: "key",
        scopes: new Set(String(headers["x-scope"]).split(",") as (typeof SCOPES)[number][]),
      }));
    },
  });
  await using server = await startTestServer({
    plugins: [
      [commands, {}],
      [commandsV1, { basePath: "/api/v1" }],
      [localProcess, {}],
      [guard, {}],
    ],
  });
  const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  const ask = async (method: string, path: string, scope: string) => {
    const response = await fetch(`${server.url}/api/v1/sandboxes/${record.id}/commands${path}`, {
      method,
      headers: { "x-scope": scope },
      ...(method === "POST" && { body: '{"argv":["true"]}' }),
    });
    return { status: response.status, answer: (await response.json().catch(() => ({}))) as Answer };
  };
  const { answer } = await ask("POST", "", "exec");
  const one = `/${answer.command_id}`;
  for (const [method, path, scope, status] of [
    ["POST", "", "exec", 201],
    ["GET", "", "read", 200],
    ["GET", one, "read", 200],
    ["GET", `${one}/logs`, "read", 200],
    ["DELETE", one, "exec", 204],
  ] as const) {
    assert.equal((await ask(method, path, scope)).status, status, `${method} ${path}`);
    const others = ["read", "write", "exec", "attach"].filter((other) => other !== scope);
    const refused = await ask(method, path, others.join(","));
    assert.deepEqual([refused.status, refused.answer.code], [403, "forbidden"], `${method} ${path}`);
  }
});

interface Event {
  readonly name: string;
  readonly id: string;
  readonly data: { readonly bytes?: string; readonly phase?: string; readonly exit_code?: number | null };
}

/** Whole events and comments of a stream. */
function eventsIn(text: string): { readonly events: readonly Event[]; readonly comments: readonly string[] } {
  const blocks = text.split("\n\n").slice(0, -1);
  const field = (block: string, name: string) =>
    block
      .split("\n")
      .find((line) => line.startsWith(`${name}: `))
      ?.slice(name.length + 2) ?? "";
  return {
    comments: blocks.filter((block) => block.startsWith(": ")).map((block) => block.slice(2)),
    events: blocks
      .filter((block) => !block.startsWith(": "))
      .map((block) => ({
        name: field(block, "event"),
        id: field(block, "id"),
        data: JSON.parse(field(block, "data")) as Event["data"],
      })),
  };
}
