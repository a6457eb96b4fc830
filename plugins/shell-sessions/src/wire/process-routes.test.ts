import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { type ShellServer, startShellServer } from "../testing/shell-server.js";

describe("processes over HTTP", { timeout: 120_000 }, () => {
  let shell: ShellServer;
  before(async () => {
    shell = await startShellServer();
  });
  after(() => shell[Symbol.asyncDispose]());

  const start = (body: object) => shell.json("POST", "/api/process/start", body);
  const found = async (id: string) =>
    (await shell.json("GET", `/api/process/${id}`))["process"] as Record<string, unknown>;
  const follow = async (id: string) =>
    (await shell.events("GET", `/api/process/${id}/stream`)).map(
      ({ timestamp: _timestamp, ...event }) => event,
    );

  it("are followed to their exit while they run, and again when they have ended", async () => {
    const command = "echo out; sleep 0.2; echo err >&2; exit 3";
    const { processId, pid } = await start({ command, processId: "one" });
    assert.deepEqual([processId, typeof pid], ["one", "number"]);
    const rest = [
      { type: "stdout", data: "out\n", processId },
      { type: "stderr", data: "err\n", processId },
      { type: "exit", processId, exitCode: 3, data: "Process failed with exit code 3" },
    ];
    const info = { type: "process_info", processId, command };
    assert.deepEqual(await follow("one"), [{ ...info, status: "running" }, ...rest]);
    assert.deepEqual(await follow("one"), [{ ...info, status: "failed" }, ...rest]);
    const { stdout, stderr } = await shell.json("GET", "/api/process/one/logs");
    assert.deepEqual([stdout, stderr], ["out\n", "err\n"]);
    const { status, exitCode, startTime, endTime } = await found("one");
    assert.deepEqual([status, exitCode], ["failed", 3]);
    assert.ok(Date.parse(String(startTime)) <= Date.parse(String(endTime)));
  });

  it("have any text in their directory and their variables, and none of it is run", async () => {
    const attacks = [
      "''; touch made #",
      "'; touch made; '",
      "$(touch made)",
      "`touch made`",
      "'\\''; touch made #",
      "a\ntouch made\n",
    ];
    for (const [index, attack] of attacks.entries()) {
      const processId = `quoted${index}`;
      const command = 'printf %s "$GIVEN"';
      await start({ command, processId, env: { GIVEN: attack } });
      const printed = (await follow(processId)).filter(({ type }) => type === "stdout");
      assert.equal(printed.map(({ data }) => data).join(""), attack);
      await start({ command, processId: `${processId}d`, cwd: `/none/${attack}` });
      const events = await follow(`${processId}d`);
      assert.deepEqual(events.at(-1)?.["exitCode"], 1, attack);
      const told = events.filter(({ type }) => type === "stderr").map(({ data }) => data);
      assert.equal(told.join(""), `Failed to change directory to '/none/${attack}'\n`);
    }
    const { stdout } = await shell.json("POST", "/api/execute", {
      command: "ls -d made /made /workspace/made 2>&1 | grep -c '^[^:]*made$'; pwd",
    });
    assert.match(String(stdout), /^0\n/);
  });

  it("are listed by status and killed, once", async () => {
    await start({ command: "sleep 60", processId: "two" });
    const { processId } = await shell.json("POST", "/api/execute", { command: "sleep 60", background: true });
    const listed = async (query: string) => {
      const { processes } = await shell.json("GET", `/api/process/list${query}`);
      return (processes as { readonly id: string }[]).map(({ id }) => id);
    };
    assert.deepEqual(await listed("?status=running"), ["two", processId]);
    assert.ok((await listed("")).includes("two"));
    assert.equal((await shell.json("DELETE", "/api/process/two"))["processId"], "two");
    const { status, exitCode } = await found("two");
    assert.deepEqual([status, exitCode], ["killed", 143]);
    assert.equal(
      (await shell.json("DELETE", "/api/process/two", undefined, 404))["code"],
      "COMMAND_NOT_FOUND",
    );
    assert.equal((await shell.json("DELETE", "/api/process/kill-all"))["cleanedCount"], 1);
    assert.deepEqual(await listed("?status=running"), []);
  });

  it("that never were are answered 404 by each route", async () => {
    for (const [method, path] of [
      ["GET", ""],
      ["GET", "/logs"],
      ["GET", "/stream"],
      ["DELETE", ""],
    ] as const) {
      const { code } = await shell.json(method, `/api/process/never%2F${path}`, undefined, 404);
      assert.equal(code, "PROCESS_NOT_FOUND", `${method} ${path}`);
    }
  });

  it("go on when a client that follows them leaves", async () => {
    await start({ command: "echo a; sleep 0.5; echo b", processId: "left" });
    const leaving = new AbortController();
    const answer = await fetch(`${shell.url}/api/process/left/stream`, { signal: leaving.signal });
    await answer.body?.getReader().read();
    leaving.abort();
    const events = await follow("left");
    assert.deepEqual(events.at(-1)?.["exitCode"], 0);
  });

  it("wait for a client that does not read, and go on when it leaves", async () => {
    const leaving = new AbortController();
    const command = "head -c 32000000 /dev/zero | tr '\\0' a; echo $?";
    const answer = await fetch(`${shell.url}/api/execute/stream`, {
      method: "POST",
      body: JSON.stringify({ command }),
      signal: leaving.signal,
    });
    const first = await answer.body?.getReader().read();
    const { processId } = JSON.parse(
      Buffer.from(first?.value ?? [])
        .toString()
        .split("\n", 1)[0]
        ?.slice("data: ".length) ?? "",
    ) as { readonly processId: string };
    assert.equal((await found(processId))["status"], "running");
    leaving.abort();
    assert.equal((await follow(processId)).at(-1)?.["exitCode"], 0);
  });
});
