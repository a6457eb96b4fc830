import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { type CommandsServer, startCommandsServer } from "../testing/commands-server.js";

describe("/commands", { timeout: 240_000 }, () => {
  let server: CommandsServer;
  before(async () => {
    server = await startCommandsServer({ maxLineSize: "1KiB" });
  });
  after(() => server[Symbol.asyncDispose]());

  const post = (path: string, body?: unknown) =>
    server.fetch(path, { method: "POST", ...(body !== undefined && { body: JSON.stringify(body) }) });
  const run = async (body: unknown) => {
    const response = await post("/commands", body);
    assert.equal(response.status, 200, await (response.ok ? "" : response.text()));
    assert.match(response.headers.get("content-type") ?? "", /^application\/x-ndjson/);
    const lines = (await response.text()).trimEnd().split("\n");
    return lines.map((line) => JSON.parse(line) as Record<string, unknown>);
  };

  /** Starts a command and waits for its first line alone. */
  async function begin(body: unknown) {
    const response = await post("/commands", body);
    const reader = response.body?.getReader();
    const first = Buffer.from((await reader?.read())?.value ?? []).toString();
    const { pid } = JSON.parse(first) as { pid: number };
    return {
      pid,
      leave: () => reader?.cancel(),
      async last() {
        let text = first;
        for (let part = await reader?.read(); part?.value !== undefined; part = await reader?.read()) {
          text += Buffer.from(part.value).toString();
        }
        return JSON.parse(text.trimEnd().split("\n").at(-1) ?? "") as Record<string, unknown>;
      },
    };
  }

  it("a command line streams its start, its lines and its end", async () => {
    const [start, ...rest] = await run({ cmd: "seq 1 3; printf 'no newline' >&2; exit 4" });
    assert.equal(start?.["type"], "start");
    assert.equal(typeof start["pid"], "number");
    assert.deepEqual(
      rest.filter(({ type }) => type !== "stderr"),
      [
        { type: "stdout", data: "1\n" },
        { type: "stdout", data: "2\n" },
        { type: "stdout", data: "3\n" },
        { type: "end", exit_code: 4 },
      ],
    );
    assert.deepEqual(rest.at(-2), { type: "stderr", data: "no newline" });
  });

  it("with args the program runs as it is, no shell reads them", async () => {
    const [, output] = await run({ cmd: "echo", args: ["$HOME; *"], env: { A: "b" }, cwd: "/" });
    assert.deepEqual(output, { type: "stdout", data: "$HOME; *\n" });
  });

  it("bytes that are not UTF-8 and lines without end come through as text, in pieces", async () => {
    const said = await run({ cmd: "printf '\\377\\n'; head -c 100000 /dev/zero | tr '\\0' x" });
    assert.deepEqual(said[1], { type: "stdout", data: "\ufffd\n" });
    const long = said.slice(2, -1).map(({ data }) => String(data));
    assert.equal(long.join(""), "x".repeat(100_000));
    assert(long.length > 1);
  });

  it("a timeout kills: exit code -1, status killed; 0 is none", async () => {
    const said = await run({ cmd: "exec sleep 60", timeout_ms: 200 });
    assert.deepEqual(said.at(-1), { type: "end", exit_code: -1 });
    assert.equal(await server.metric('finished_total{status="killed"}'), 1);
    await using hasty = await startCommandsServer({ defaultTimeout: "300ms" });
    for (const [body, exit_code] of [
      [{ cmd: "sleep 60" }, -1],
      [{ cmd: "sleep 1", timeout_ms: 0 }, 0],
    ] as const) {
      const response = await hasty.fetch("/commands", { method: "POST", body: JSON.stringify(body) });
      const last = (await response.text()).trimEnd().split("\n").at(-1) ?? "";
      assert.deepEqual(JSON.parse(last), { type: "end", exit_code });
    }
  });

  it("commands are listed, shown and killed by pid, and live on without their client", async () => {
    const { pid, leave } = await begin({ cmd: "sleep 60", tag: "nap" });
    await leave();
    const shown = await (await server.fetch(`/commands/${pid}`)).json();
    const { started_at: startedAt, ...rest } = shown as Record<string, unknown>;
    assert.deepEqual(rest, { pid, cmd: "/bin/sh", args: ["-c", "sleep 60"], tag: "nap", status: "running" });
    assert(!Number.isNaN(Date.parse(String(startedAt))));
    assert.deepEqual(await (await server.fetch("/commands")).json(), [shown]);
    const killed = await post(`/commands/${pid}/kill`);
    assert.deepEqual([killed.status, await killed.json()], [200, { pid, killed: true }]);
    let status: unknown;
    do ({ status } = (await (await server.fetch(`/commands/${pid}`)).json()) as { status: unknown });
    while (status === "running");
    assert.equal(status, "killed");
    assert.deepEqual(await (await server.fetch("/commands")).json(), []);
    assert.equal((await post(`/commands/${pid}/kill`)).status, 404);
  });

  it("a watched command that is killed ends with -1", async () => {
    const watched = await begin({ cmd: "exec sleep 60" });
    assert.equal((await post(`/commands/${watched.pid}/kill`, { signal: "SIGTERM" })).status, 200);
    assert.deepEqual(await watched.last(), { type: "end", exit_code: -1 });
  });

  it("an invalid request is refused in JSON, and the next one is served", async () => {
    const bodies = [
      "",
      "{",
      "[]",
      "null",
      "{}",
      '{"cmd":5}',
      '{"cmd":""}',
      '{"cmd":"a","args":"b"}',
      '{"cmd":"a","timeout_ms":-1}',
      '{"cmd":"a\\u0000"}',
    ];
    for (const body of bodies) {
      const response = await server.fetch("/commands", { method: "POST", body });
      assert.equal(response.status, 400, body);
      assert.equal(typeof ((await response.json()) as { message: unknown }).message, "string", body);
    }
    for (const path of ["/commands/abc", "/commands/-1"])
      assert.equal((await server.fetch(path)).status, 400, path);
    assert.equal((await server.fetch("/commands/4000000")).status, 404);
    assert.equal((await server.fetch("/commands/1", { method: "DELETE" })).status, 405);
    const { pid, leave } = await begin({ cmd: "sleep 60" });
    assert.equal((await post(`/commands/${pid}/kill`, { signal: "SIGBOGUS" })).status, 400);
    await post(`/commands/${pid}/kill`);
    await leave();
    assert.deepEqual((await run({ cmd: "echo served" }))[1], { type: "stdout", data: "served\n" });
  });
});
