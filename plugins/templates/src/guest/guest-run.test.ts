import assert from "node:assert/strict";
import { it } from "node:test";
import type { Exit, Loss, Output, Process, Sandbox } from "@coppice/core/backend";
import { failureText, runInGuest } from "./guest-run.js";

const COMMAND = { path: "program", args: [], env: {} };

/** A sandbox whose only process behaves as it is told. @returns signals that the process got as well */
function sandboxWith(process: {
  readonly exit: Promise<Exit>;
  readonly output?: AsyncIterable<Output>;
  readonly lost?: Promise<Loss>;
}): { readonly sandbox: Sandbox; readonly signals: string[]; readonly input: Uint8Array[] } {
  const signals: string[] = [];
  const input: Uint8Array[] = [];
  const started = {
    pid: 2,
    output: process.output ?? (async function* none() {})(),
    exit: process.exit,
    kill: async (signal: string, scope: string) => void signals.push(`${signal} ${scope}`),
    write: async (data: Uint8Array) => void input.push(data),
    closeInput: async () => undefined,
  } as unknown as Process;
  return {
    sandbox: { spawn: async () => started, lost: process.lost } as unknown as Sandbox,
    signals,
    input,
  };
}

const { signal } = new AbortController();

it("a command whose sandbox is lost fails with the reason", async () => {
  const exit = Promise.resolve<Exit>({ signal: "SIGKILL", isAssumed: true });
  const { sandbox } = sandboxWith({ exit, lost: Promise.resolve<Loss>("out of memory") });
  await assert.rejects(runInGuest(sandbox, COMMAND, { signal }), {
    name: "SandboxError",
    message: "the sandbox of the build was lost: out of memory",
  });
});

it("a script that a hang-up ended says so, as commands of clients do", () => {
  const text = failureText({ exit: { signal: "SIGHUP" }, stdout: "", stderr: "tar: stopped" });
  assert.equal(text, "signal: hangup: tar: stopped");
});

it("output that stays open after the exit is not waited for", async () => {
  let isClosed = false;
  const pieces = [{ stream: "stdout", data: Buffer.from("x") } as const];
  const output: AsyncIterable<Output> = {
    [Symbol.asyncIterator]: () => ({
      next: async () => {
        const value = pieces.shift();
        return value === undefined ? new Promise<never>(() => undefined) : { done: false, value };
      },
      return: async () => {
        isClosed = true;
        return { done: true, value: undefined };
      },
    }),
  };
  const { sandbox } = sandboxWith({ exit: Promise.resolve({ code: 3 }), output });
  const seen: string[] = [];
  const onOutput = ({ data }: Output): void => void seen.push(String(data));
  assert.deepEqual(await runInGuest(sandbox, COMMAND, { signal, onOutput }), { code: 3 });
  assert.deepEqual([seen, isClosed], [["x"], true]);
});

it("a command is killed when its input breaks, its output is not taken, or it is given up", async () => {
  const exit = new Promise<never>(() => undefined);
  async function* broken(): AsyncGenerator<Uint8Array> {
    yield Buffer.from("a part");
    throw new Error("the input is broken");
  }
  const feeding = sandboxWith({ exit });
  await assert.rejects(
    runInGuest(feeding.sandbox, COMMAND, { signal, input: broken() }),
    /the input is broken/,
  );
  assert.deepEqual([feeding.signals, String(feeding.input[0])], [["SIGKILL group"], "a part"]);

  const output = (async function* one(): AsyncGenerator<Output> {
    yield { stream: "stdout", data: Buffer.from("x") };
  })();
  const reading = sandboxWith({ exit, output });
  const onOutput = async (): Promise<void> => Promise.reject(new Error("the disk is full"));
  await assert.rejects(runInGuest(reading.sandbox, COMMAND, { signal, onOutput }), /the disk is full/);
  assert.deepEqual(reading.signals, ["SIGKILL group"]);

  const aborting = new AbortController();
  const waiting = sandboxWith({ exit });
  const run = runInGuest(waiting.sandbox, COMMAND, { signal: aborting.signal });
  setImmediate(() => aborting.abort(new Error("given up")));
  await assert.rejects(run, /given up/);
  assert.deepEqual(waiting.signals, ["SIGKILL group"]);
});
