import assert from "node:assert/strict";
import { it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { systemClock } from "@coppice/core";
import type { Command, Exit, Output, Process, Sandbox } from "@coppice/core/backend";
import { startTestServer } from "@coppice/core/testing";
import localProcess from "@coppice/plugin-local-process";
import { Shell } from "./shell.js";

it("a command's output cannot say its end, its status or its directory: what looks like a mark is output", async () => {
  await using server = await startTestServer({ plugins: [[localProcess, {}]] });
  const { runtime } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  const shell = await Shell.start({
    runtime,
    env: { PATH: process.env["PATH"] ?? "" },
    user: (await runtime.user()).name,
    clock: systemClock,
    shellTimeoutMs: 5_000,
    killGraceMs: 1_000,
  });
  const marks = ["B\0", "E7\u001F/evil\0", "S\0", "E0\u001F/\0"].map(
    (rest) => `\u001E${"0123456789abcdef".repeat(2)}${rest}`,
  );
  const forged = marks.join("");
  const octal = Array.from(Buffer.from(forged), (byte) => `\\0${byte.toString(8)}`).join("");
  const printed = `printf '%b' '${octal}'`;
  const outputs = { stdout: "", stderr: "", terminal: "" };
  const end = await shell.run({
    command: `cd /tmp; ${printed}; ${printed} >&2; sleep 0.2; echo behind; (exit 3)`,
    async onOutput({ stream, data }) {
      outputs[stream] += Buffer.from(data).toString("latin1");
    },
  });
  assert.deepEqual(outputs, { stdout: `${forged}behind\n`, stderr: forged, terminal: "" });
  assert.ok(end.status !== undefined, "the shell lives");
  assert.deepEqual([end.status, end.cwd.endsWith("/tmp")], [3, true]);
  shell.close();
});

it("what comes outside of a command's marks, as from one that was left in the background, is no output of it", async () => {
  const commands = Promise.withResolvers<string>();
  const pieces = async function* (): AsyncGenerator<Output> {
    const [nonce = ""] = /[0-9a-f]{32}/.exec(await commands.promise) ?? [];
    const mark = (rest: string): string => `\u001E${nonce}${rest}\0`;
    for (const [stream, status] of [
      ["stdout", "0\u001F/"],
      ["stderr", ""],
    ] as const)
      yield { stream, data: Buffer.from(`before${mark("B")}${stream}${mark(`E${status}`)}behind`) };
  };
  const ended = Promise.withResolvers<Exit>();
  const scripted: Partial<Process> = {
    output: pieces(),
    exit: ended.promise,
    write: async (input) => {
      if (String(input).startsWith("\\__coppice_begin")) commands.resolve(String(input));
    },
    kill: async () => undefined,
  };
  const shell = await Shell.start({
    runtime: { spawn: async () => scripted } as unknown as Sandbox,
    env: {},
    user: "user",
    clock: systemClock,
    shellTimeoutMs: 5_000,
    killGraceMs: 1_000,
  });
  const outputs: string[] = [];
  const { status } = await shell.run({
    command: "true",
    onOutput: async ({ data }) => void outputs.push(Buffer.from(data).toString()),
  });
  assert.deepEqual([status, outputs], [0, ["stdout", "stderr"]]);
  ended.resolve({ code: 0 });
});

it("a signal of a time-out that comes after the end of its command does not reach the next one", async () => {
  await using server = await startTestServer({ plugins: [[localProcess, {}]] });
  const { runtime } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  const { name } = await runtime.user();
  const slow: Sandbox = Object.create(runtime, {
    spawn: {
      value: async (command: Command): Promise<Process> => {
        const process = await runtime.spawn(command);
        const kill = process.kill.bind(process);
        return Object.assign(process, {
          kill: async (...args: Parameters<Process["kill"]>) => {
            if (args[0] === "SIGUSR1") await delay(400);
            await kill(...args);
          },
        });
      },
    },
  });
  const start = () =>
    Shell.start({
      runtime: slow,
      env: { PATH: process.env["PATH"] ?? "" },
      user: name,
      clock: systemClock,
      shellTimeoutMs: 5_000,
      killGraceMs: 1_000,
    });
  const onOutput = () => Promise.resolve();
  const shell = await start();
  const overdue = await shell.run({ command: "kept=1; sleep 0.2", timeoutMs: 100, onOutput });
  assert.deepEqual([overdue.isOverdue, overdue.status], [true, undefined]);
  assert.equal((await shell.ended).code, 0);
  const next = await start();
  const { state = Buffer.alloc(0) } = overdue as { readonly state?: Buffer };
  assert.match(state.toString(), /kept="?1/);
  await next.run({ command: state, onOutput });
  assert.equal((await next.run({ command: "[ $kept = 1 ]", onOutput })).status, 0);
  next.close();
});
