import assert from "node:assert/strict";
import { PassThrough } from "node:stream";
import { describe, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import {
  SandboxError,
  type Exit,
  type Logger,
  type Output,
  type Process,
  type Sandbox,
  type User,
} from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import type { ExecutionEvent } from "./execution-event.js";
import type { ChannelName } from "./kernel-channels.js";
import { Kernel } from "./kernel.js";
import { PortLeases } from "./port-leases.js";
import { signedFrames } from "./wire.js";

const log = { debug() {}, warn() {}, error() {} } as unknown as Logger;
/** More than it takes for what has been said to be heard. */
const HEARD_MS = 50;

interface Sent {
  readonly channel: string;
  readonly id: string;
  readonly type: string;
}

/** A kernel that says what the test has it say. */
class ScriptedKernel {
  readonly sent: Sent[] = [];
  readonly started: Promise<Kernel>;
  readonly #said = {
    shell: new PassThrough({ objectMode: true }),
    control: new PassThrough({ objectMode: true }),
    stdin: new PassThrough({ objectMode: true }),
    iopub: new PassThrough({ objectMode: true }),
  };
  readonly #exit = Promise.withResolvers<Exit>();
  readonly #outputEnd = Promise.withResolvers<void>();
  readonly #stop = new AbortController();
  #isLeft = false;
  #key = "";
  #ids = 0;

  constructor({ listens = true } = {}) {
    const exit = this.#exit;
    const outputEnd = this.#outputEnd;
    void exit.promise.then(() => outputEnd.resolve());
    const process: Process = {
      pid: 1,
      output: (async function* (): AsyncGenerator<Output, void, undefined> {
        const ports = { shell: 1, iopub: 2, stdin: 3, control: 4, hb: 5 };
        if (listens) yield { stream: "stdout", data: Buffer.from(`${JSON.stringify(ports)}\n`) };
        await outputEnd.promise;
      })(),
      write: async () => undefined,
      closeInput: async () => undefined,
      kill: async () => {
        if (this.#isLeft) throw new SandboxError("canceled", "the connection was closed");
        exit.resolve({ signal: "SIGKILL" });
      },
      resize: async () => undefined,
      exit: exit.promise,
    };
    const sandbox = {
      spawn: async () => process,
      dial: async () => {
        throw new Error("nobody listens");
      },
    } as unknown as Sandbox;
    this.started = Kernel.start({
      sandbox,
      user: { name: "user" } as User,
      env: {},
      cwd: "/",
      program: {
        path: "kernel",
        args: [],
        start: async (key) => {
          this.#key = key;
          return {};
        },
      },
      settings: {
        startTimeoutMs: 20_000,
        interruptGraceMs: 1000,
        maxMessageBytes: 1_000_000,
        maxErrorBytes: 1_000_000,
        heartbeat: { clock: fakeClock(), intervalMs: 1000, maxMisses: 3 },
        portLeases: new PortLeases({ firstPort: 20_000, maximum: 1 }),
        openChannels: () => ({
          send: async (channel, frames) => {
            const header = JSON.parse(String(frames[2])) as { msg_id: string; msg_type: string };
            this.sent.push({ channel, id: header.msg_id, type: header.msg_type });
          },
          receive: (channel) => this.#said[channel],
          close: async () => {
            for (const said of Object.values(this.#said)) said.end();
          },
        }),
      },
      log,
      isStill: () => false,
      onSilent: () => undefined,
      signal: this.#stop.signal,
    });
  }

  /** Whoever starts it wants it no more. */
  stop(): void {
    this.#stop.abort(new SandboxError("aborted", "the server stops"));
  }

  /** The first request of a type, or one after that. */
  async asked(type: string, index = 0): Promise<Sent> {
    for (;;) {
      const found = this.sent.filter((message) => message.type === type)[index];
      if (found !== undefined) return found;
      await delay(1);
    }
  }

  end(): void {
    this.#exit.resolve({ code: 1 });
  }

  /** The server lets go of the sandbox: nothing more is heard of the process, which may live on. */
  leave(): void {
    this.#isLeft = true;
    this.#outputEnd.resolve();
  }

  /** From here on it is another kernel that speaks, with a key of its own. */
  replace(): void {
    this.#key = "of another kernel";
  }

  say(channel: ChannelName, type: string, parent: Sent, content: object): void {
    const parentHeader = { msg_id: parent.id, msg_type: parent.type };
    const parts = [{ msg_id: `said ${++this.#ids}`, msg_type: type }, parentHeader, {}, content];
    const [header, parentPart, metadata, contentPart] = parts.map((part) =>
      Buffer.from(JSON.stringify(part)),
    );
    assert.ok(header && parentPart && metadata && contentPart);
    const message = { header, parentHeader: parentPart, metadata, content: contentPart, buffers: [] };
    this.#said[channel].write(signedFrames(message, this.#key));
  }
}

/** Whether it has settled by now, with time to hear what has been said. */
async function isSettled(promise: Promise<unknown>): Promise<boolean> {
  return Promise.race([promise.then(() => true), delay(HEARD_MS, false)]);
}

/** A kernel that is ready, and what a cell of it tells. */
async function ready() {
  const scripted = new ScriptedKernel();
  const info = await scripted.asked("kernel_info_request");
  scripted.say("control", "kernel_info_reply", info, { status: "ok" });
  scripted.say("iopub", "status", info, { execution_state: "idle" });
  const kernel = await scripted.started;
  const run = async (): Promise<readonly ExecutionEvent[]> => {
    const events: ExecutionEvent[] = [];
    const execution = kernel.execute({ code: "1", variables: {} }, new AbortController().signal);
    for await (const event of execution) events.push(event);
    return events;
  };
  return { scripted, kernel, run };
}

describe("a kernel", () => {
  for (const [first, second] of [
    ["reply", "message"],
    ["message", "reply"],
  ] as const) {
    test(`is ready with one reply on control and one message on iopub, here the ${first} before the ${second}`, async () => {
      const scripted = new ScriptedKernel();
      const { started } = scripted;
      const asked = await scripted.asked("kernel_info_request");
      assert.equal(asked.channel, "control");
      const say = {
        reply: () => scripted.say("control", "kernel_info_reply", asked, { status: "ok" }),
        message: () => scripted.say("iopub", "status", asked, { execution_state: "busy" }),
      };
      say[first]();
      assert.equal(await isSettled(started), false);
      // To make it say what is missing; never the same message again, which a kernel would drop.
      const again = await scripted.asked("kernel_info_request", 1);
      assert.notEqual(again.id, asked.id);
      say[second]();
      const kernel = await started;
      const questions = scripted.sent.length;
      await delay(HEARD_MS);
      assert.equal(scripted.sent.length, questions);
      await kernel.kill();
    });
  }

  test("is not ready by what another kernel says, where that has one of its ports", async () => {
    const scripted = new ScriptedKernel();
    const asked = await scripted.asked("kernel_info_request");
    scripted.say("control", "kernel_info_reply", asked, { status: "ok" });
    scripted.replace();
    scripted.say("iopub", "status", asked, { execution_state: "busy" });
    assert.equal(await isSettled(scripted.started), false);
    scripted.end();
    await assert.rejects(scripted.started, { code: "failed_precondition" });
  });

  for (const listens of [false, true]) {
    test(`that starts in a sandbox which the server leaves is not waited for, ${listens ? "after" : "before"} it listens`, async () => {
      const scripted = new ScriptedKernel({ listens });
      if (listens) await scripted.asked("kernel_info_request");
      await delay(HEARD_MS);
      const given = assert.rejects(scripted.started, { code: "aborted" });
      scripted.leave();
      await delay(HEARD_MS);
      scripted.stop();
      await given;
    });
  }

  for (const order of [
    ["reply", "idle"],
    ["idle", "reply"],
  ] as const) {
    test(`has done what it was asked when both halves of the end are there, here the ${order[0]} first`, async () => {
      const { scripted, kernel, run } = await ready();
      const [one, other] = [run(), run()];
      const [asked, askedToo] = [
        await scripted.asked("execute_request"),
        await scripted.asked("execute_request", 1),
      ];
      const end = (request: Sent, half: "reply" | "idle"): void => {
        if (half === "reply") scripted.say("shell", "execute_reply", request, { status: "ok" });
        else scripted.say("iopub", "status", request, { execution_state: "idle" });
      };
      scripted.say("iopub", "execute_input", asked, { code: "1", execution_count: 1 });
      end(asked, order[0]);
      // What belongs to another request is no half of this one.
      end(askedToo, order[1]);
      assert.equal(await isSettled(one), false);
      assert.equal(await isSettled(other), false);
      end(asked, order[1]);
      assert.deepEqual(
        (await one).map(({ type }) => type),
        ["number_of_executions"],
      );
      assert.equal(await isSettled(other), false);
      end(askedToo, order[0]);
      assert.deepEqual(await other, []);
      await kernel.kill();
    });
  }

  test("that dropped the idle of a cell has ended it by its reply, once nothing comes any more", async () => {
    const { scripted, kernel, run } = await ready();
    const cell = run();
    const asked = await scripted.asked("execute_request");
    scripted.say("iopub", "execute_input", asked, { code: "1", execution_count: 1 });
    scripted.say("shell", "execute_reply", asked, { status: "ok" });
    assert.deepEqual(
      (await cell).map(({ type }) => type),
      ["number_of_executions"],
    );
    await kernel.kill();
  });
});
