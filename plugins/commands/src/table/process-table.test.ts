import assert from "node:assert/strict";
import { it } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { type Clock, type LiveSandbox, type Logger, SandboxError } from "@coppice/core";
import type { Command, Exit, Output, Process, Sandbox, Signal } from "@coppice/core/backend";
import { fakeClock } from "@coppice/core/testing";
import { Registry } from "prom-client";
import { commandMetrics } from "./command-metrics.js";
import { commandsConfig } from "../commands-config.js";
import type { StartCommand, StartedCommand } from "../contract/commands.js";
import { diskFiles } from "../output-log/log-files.js";
import { logMetrics } from "../output-log/log-metrics.js";
import { OutputLogs } from "../output-log/output-logs.js";
import { readCommandLabel } from "./command-label.js";
import { ProcessTable } from "./process-table.js";

const WATCHING = new AbortController().signal;

/** A process whose output and end the test decides. Killing it ends it, but leaves its output open. */
class ScriptedProcess implements Process {
  readonly output: AsyncIterable<Output>;
  readonly exit: Promise<Exit>;
  readonly signals: Signal[] = [];
  readonly written: string[] = [];
  read = 0;
  ignoresSignals = false;
  #exitNow!: (exit: Exit) => void;
  #isGone = false;
  #isOutputOpen = true;
  readonly #pieces: Output[] = [];
  #wake = () => {};

  constructor(
    readonly pid: number,
    readonly command: Command,
  ) {
    this.exit = new Promise((resolve) => {
      this.#exitNow = resolve;
    });
    this.output = this.#read();
  }
  print(text: string, stream: Output["stream"] = "stdout") {
    this.#pieces.push({ stream, data: Buffer.from(text) });
    this.#wake();
  }
  closeOutput() {
    this.#isOutputOpen = false;
    this.#wake();
  }
  end(exit: Exit) {
    this.#isGone = true;
    this.#exitNow(exit);
  }
  finish(exit: Exit) {
    this.closeOutput();
    this.end(exit);
  }
  async write(data: Uint8Array) {
    this.written.push(Buffer.from(data).toString());
  }
  async closeInput() {}
  async resize() {}
  async kill(signal: Signal) {
    await Promise.resolve();
    if (this.#isGone) throw new SandboxError("process_not_found", "gone");
    this.signals.push(signal);
    if (!this.ignoresSignals) this.end({ signal });
  }
  async *#read(): AsyncGenerator<Output> {
    for (;;) {
      const piece = this.#pieces.shift();
      if (piece !== undefined) {
        this.read += 1;
        yield piece;
      } else if (this.#isOutputOpen) await new Promise<void>((resolve) => (this.#wake = resolve));
      else return;
    }
  }
}

function scene(settings: Record<string, unknown> = {}) {
  const clock = fakeClock();
  const registry = new Registry();
  const processes: ScriptedProcess[] = [];
  const end = new AbortController();
  let pid = 100;
  const runtime = {
    user: async (name = "user") => {
      if (name === "nobody") throw new SandboxError("account_not_found", "unknown user nobody");
      return { name, uid: 1000, gid: 1000, home: `/home/${name}`, shell: "/bin/bash" };
    },
    spawn: async (command: Command) => {
      const process = new ScriptedProcess(pid++, command);
      processes.push(process);
      return process;
    },
  } as unknown as Sandbox;
  const sandbox: LiveSandbox = {
    record: {
      id: "sandbox1",
      template: "base",
      environment: { MODE: "test" },
    } as unknown as LiveSandbox["record"],
    runtime,
    isReachable: true,
    isFrozen: false,
    requests: 0,
    lastUsedAtMs: 0,
    stats: () => runtime.stats(),
    adopted: async () => [],
    ended: end.signal,
  };
  const table = new ProcessTable({
    config: commandsConfig.parse(settings),
    metrics: commandMetrics(registry),
    clock,
    log: { error() {} } as unknown as Logger,
    logs: noLogs(clock),
  });
  const start = async (request: Partial<StartCommand> = {}) => {
    const command = await table.start(sandbox, { path: "/bin/true", ...request });
    const process = processes.find(({ pid }) => pid === command.pid);
    assert(process !== undefined);
    return { command, process };
  };
  const metrics = async () => {
    const values = Object.fromEntries(
      (await registry.getMetricsAsJSON()).flatMap(({ name, type, values }) =>
        // Of durations, only the number of measurements is compared.
        (String(type) === "histogram" ? values.slice(-1) : values).map(({ value, labels }) => [
          `${name.replace("coppice_commands_", "")}${"status" in labels ? `:${labels["status"]}` : ""}`,
          value,
        ]),
      ),
    );
    return values as Record<string, number>;
  };
  return { clock, table, sandbox, start, metrics, processes, endSandbox: () => end.abort("killed") };
}

/** Logs that were never opened: nothing is recorded. */
function noLogs(clock: Clock): OutputLogs {
  return new OutputLogs({
    config: commandsConfig.parse({}).log,
    files: diskFiles,
    clock,
    log: {} as unknown as Logger,
    metrics: logMetrics(new Registry(), () => 0),
  });
}

async function settle() {
  for (let turn = 0; turn < 3; turn += 1) await nextTurn();
}

async function readAll(command: StartedCommand, signal = WATCHING) {
  let text = "";
  for await (const { data } of command.subscribe(signal)) text += Buffer.from(data).toString();
  return text;
}

it("a command gets the account, the sandbox's environment, its own variables last and a resolved directory", async () => {
  const { start } = scene();
  const { process, command } = await start({
    path: "make",
    args: ["all"],
    environment: { MODE: "mine", HOME: "/elsewhere" },
    cwd: "src",
    user: "ada",
    input: "none",
  });
  const { env, label, ...rest } = process.command;
  assert.deepEqual(rest, {
    path: "make",
    args: ["all"],
    cwd: "/home/ada/src",
    user: "ada",
    terminal: undefined,
    input: "none",
    keepsOutput: true,
  });
  assert.equal(readCommandLabel(label ?? "")?.id, command.id);
  assert.equal(env["MODE"], "mine");
  assert.equal(env["HOME"], "/elsewhere");
  assert.equal(env["LOGNAME"], "ada");
  assert.equal(env["E2B_SANDBOX_ID"], "sandbox1");
  await assert.rejects(command.write(Buffer.from("x")), {
    code: "failed_precondition",
    message: "stdin not enabled or closed",
  });
});

it("a subscriber right after the start misses nothing; a later one gets output from then on", async () => {
  const { start } = scene();
  const { command, process } = await start();
  const first = readAll(command);
  process.print("one ");
  await settle();
  const second = readAll(command);
  process.print("two");
  process.finish({ code: 0 });
  assert.deepEqual(await Promise.all([first, second]), ["one two", "two"]);
  assert.equal(command.end?.outcome, "ok");
  assert.equal(await readAll(command), "", "a subscriber after the end gets the end alone");
});

it("a slow subscriber makes the process wait and loses nothing; when it leaves, the process runs on", async () => {
  const { start } = scene({ subscriberBuffer: "1KiB" });
  const { command, process } = await start();
  const fast = readAll(command);
  const leaving = new AbortController();
  const slow = command.subscribe(leaving.signal)[Symbol.asyncIterator]();
  for (let piece = 0; piece < 50; piece += 1) process.print("x".repeat(200));
  await settle();
  assert(process.read < 10, `the process was read ${process.read} times ahead of its slow subscriber`);
  assert.equal((await slow.next()).value?.data.length, 200);
  await settle();
  leaving.abort();
  process.finish({ code: 0 });
  assert.equal((await fast).length, 50 * 200);
  assert.equal((await slow.next()).done, true);
});

it("without a subscriber output is read and discarded", async () => {
  const { start } = scene({ subscriberBuffer: "1KiB" });
  const { command, process } = await start();
  for (let piece = 0; piece < 50; piece += 1) process.print("x".repeat(200));
  process.finish({ code: 3 });
  assert.equal((await command.ended).outcome, "error");
  assert.equal(process.read, 50);
});

it("a command ends after both its output and its process, whichever is later", async () => {
  const { start, table, sandbox } = scene();
  const { command, process } = await start();
  process.end({ code: 0 });
  await settle();
  assert.equal(command.end, undefined);
  assert.deepEqual(table.list(sandbox), [command]);
  process.print("from a child that holds the pipe");
  process.closeOutput();
  assert.deepEqual((await command.ended).exit, { code: 0 });
  assert.deepEqual(table.list(sandbox), []);
});

it("a killed command ends soon, even if children hold its output or readers are slow", async () => {
  const { start, clock } = scene();
  const { command, process } = await start();
  const unread = command.subscribe(WATCHING);
  process.print("x".repeat(1_000_000));
  await settle();
  await command.kill("SIGKILL");
  await clock.advance(200);
  assert.equal(command.end?.outcome, "killed");
  let length = 0;
  for await (const { data } of unread) length += data.length;
  assert.equal(length, 1_000_000, "what was read before the kill still reaches its subscriber");
  await assert.rejects(command.kill("SIGKILL"), { code: "not_found" });
});

it("SIGKILL ends a command whose process is gone and whose child holds the output", async () => {
  const { start, clock } = scene();
  const { command, process } = await start();
  process.end({ code: 0 });
  await settle();
  await command.kill("SIGKILL");
  await clock.advance(200);
  assert.deepEqual(command.end?.exit, { code: 0 });
  assert.equal(command.end.outcome, "ok");
});

it("SIGTERM that a command survives leaves it running", async () => {
  const { start, clock } = scene();
  const { command, process } = await start();
  process.ignoresSignals = true;
  await command.kill("SIGTERM");
  await clock.advance(10_000);
  assert.equal(command.end, undefined);
  process.finish({ code: 143 });
  assert.equal((await command.ended).outcome, "killed");
});

it("the timeout sends SIGKILL, watched or not", async () => {
  const { start, clock } = scene();
  const { command, process } = await start({ timeoutMs: 5000 });
  await clock.advance(4999);
  assert.equal(command.expired.aborted, false);
  await clock.advance(1);
  assert.equal(command.expired.aborted, true);
  assert.deepEqual(process.signals, ["SIGKILL"]);
  process.closeOutput();
  assert.deepEqual(await command.ended, {
    exit: { signal: "SIGKILL" },
    outcome: "killed",
    endedAtMs: clock.now(),
  });
});

it("no command keeps its variables once it has ended, and none of more arguments than are listed ever does", async () => {
  const { start } = scene({ maxListedSize: "1KiB" });
  const short = await start({ args: ["a"], environment: { SECRET: "s" }, tag: "t" });
  const long = await start({ args: ["a", "b".repeat(2000)], environment: { SECRET: "s" } });
  assert.deepEqual(long.process.command.env["SECRET"], "s");
  assert.deepEqual(short.command.request, {
    path: "/bin/true",
    args: ["a"],
    environment: { SECRET: "s" },
    tag: "t",
  });
  assert.deepEqual(long.command.request, { path: "/bin/true", args: ["a"], environment: undefined });
  for (const { command, process } of [short, long]) {
    process.finish({ code: 0 });
    await command.ended;
    assert.equal(command.request.environment, undefined);
    assert.deepEqual(command.request.args, ["a"]);
  }
});

it("an ended command is found among the retained for 30 s, and never among the running", async () => {
  const { start, clock, table, sandbox } = scene();
  const { command, process } = await start({ tag: "build" });
  assert.equal(table.find(sandbox, { tag: "build" }), command);
  process.finish({ code: 0 });
  await command.ended;
  const selector = { pid: command.pid };
  assert.throws(() => table.find(sandbox, selector), {
    code: "not_found",
    message: `process with pid ${command.pid} not found`,
  });
  assert.equal(table.find(sandbox, selector, "retained"), command);
  await clock.advance(29_999);
  assert.equal(table.find(sandbox, { tag: "build" }, "retained"), command);
  await clock.advance(1);
  assert.throws(() => table.find(sandbox, { tag: "build" }, "retained"), {
    code: "not_found",
    message: "process with tag build not found",
  });
  assert.equal(clock.pending, 0, "no timer is left");
});

it("a tag that several commands carry names the newest that runs, other tags before it notwithstanding", async () => {
  const { start, table, sandbox } = scene();
  await start({ tag: "other" });
  const older = await start({ tag: "same" });
  const newer = await start({ tag: "same" });
  assert.equal(table.find(sandbox, { tag: "same" }), newer.command);
  newer.process.finish({ code: 0 });
  await newer.command.ended;
  assert.equal(table.find(sandbox, { tag: "same" }, "retained"), older.command);
});

it("limits and impossible arguments are refused before anything is started", async () => {
  const { start, processes } = scene({
    maxCommandsPerSandbox: 1,
    maxArgumentSize: "100B",
    maxArgumentsSize: "150B",
  });
  await assert.rejects(start({ path: "" }), { code: "invalid_argument" });
  await assert.rejects(start({ args: ["a\0b"] }), { code: "invalid_argument" });
  await assert.rejects(start({ args: ["x".repeat(100)] }), { code: "invalid_argument" });
  await assert.rejects(start({ args: ["x".repeat(80), "x".repeat(80)] }), { code: "invalid_argument" });
  await assert.rejects(start({ environment: { "A=B": "" } }), { code: "invalid_argument" });
  await assert.rejects(start({ terminal: { columns: 0, rows: 70_000 } }), { code: "invalid_argument" });
  await assert.rejects(start({ cwd: "~ada/x" }), { code: "invalid_argument" });
  await assert.rejects(start({ user: "nobody" }), {
    code: "unauthenticated",
    message: "invalid username: 'nobody'",
  });
  const both = await Promise.allSettled([start(), start()]);
  assert.deepEqual(both.map(({ status }) => status).sort(), ["fulfilled", "rejected"]);
  assert.equal(processes.length, 1);
});

it("when its sandbox ends a command ends as killed at once, and everything about it is dropped", async () => {
  const { start, clock, table, sandbox, metrics, endSandbox } = scene();
  const { command } = await start({ timeoutMs: 60_000 });
  const done = await start();
  done.process.finish({ code: 0 });
  await done.command.ended;
  const output = readAll(command);
  endSandbox();
  assert.deepEqual(command.end, { exit: undefined, outcome: "killed", endedAtMs: clock.now() });
  assert.equal(await output, "");
  assert.deepEqual(table.list(sandbox), []);
  assert.throws(() => table.find(sandbox, { pid: done.command.pid }, "retained"), { code: "not_found" });
  assert.equal(clock.pending, 0, "no timer is left");
  const late = await start();
  assert.equal(late.command.end?.outcome, "killed", "a spawn that the end overtook");
  assert.deepEqual(await metrics(), {
    "started_total": 3,
    "finished_total:ok": 1,
    "finished_total:error": 0,
    "finished_total:killed": 2,
    "active": 0,
    "start_seconds": 3,
  });
});

it("200 commands that are killed while they end are each counted once", async () => {
  const { start, metrics, endSandbox, table, sandbox } = scene();
  const started = await Promise.all(Array.from({ length: 200 }, () => start()));
  await Promise.all(
    started.map(async ({ command, process }, index) => {
      for (let turn = 0; turn < index % 4; turn += 1) await Promise.resolve();
      const kills = [0, 1].map(() => command.kill(index % 2 ? "SIGKILL" : "SIGTERM").catch(() => {}));
      for (let turn = 0; turn < index % 5; turn += 1) await Promise.resolve();
      if (index % 10 === 9) return;
      process.finish({ code: index % 3 });
      await Promise.all(kills);
      await command.ended;
    }),
  );
  endSandbox();
  assert.deepEqual(table.list(sandbox), []);
  const counted = await metrics();
  assert.equal(counted["started_total"], 200);
  assert.equal(counted["active"], 0);
  assert.equal(
    (counted["finished_total:ok"] ?? 0) +
      (counted["finished_total:error"] ?? 0) +
      (counted["finished_total:killed"] ?? 0),
    200,
  );
});
