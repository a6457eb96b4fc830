import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import type { ExecutionEvent } from "./execution-event.js";
import { KernelRequest } from "./kernel-request.js";
import { startKernel } from "./start-kernel.js";
import { ScriptedKernel, type Sent } from "../testing/scripted-kernel.js";

class StartedKernel extends ScriptedKernel {
  readonly started = startKernel(this.start);
}

/** Longer than a message needs to arrive. */
const HEARD_MS = 50;

/** True when the promise settles within HEARD_MS. */
async function isSettled(promise: Promise<unknown>): Promise<boolean> {
  return Promise.race([promise.then(() => true), delay(HEARD_MS, false)]);
}

/** A kernel that is ready, and a function that runs a cell and collects its events. */
async function ready() {
  const scripted = new StartedKernel();
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
    it(`is ready with one reply on control and one message on iopub, here the ${first} before the ${second}`, async () => {
      const scripted = new StartedKernel();
      const { started } = scripted;
      const asked = await scripted.asked("kernel_info_request");
      assert.equal(asked.channel, "control");
      const say = {
        reply: () => scripted.say("control", "kernel_info_reply", asked, { status: "ok" }),
        message: () => scripted.say("iopub", "status", asked, { execution_state: "busy" }),
      };
      say[first]();
      assert.equal(await isSettled(started), false);
      // Asks for the missing message, with a new id each time: a kernel drops a repeated one.
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

  it("is not made ready by messages of another kernel on one of its ports", async () => {
    const scripted = new StartedKernel();
    const asked = await scripted.asked("kernel_info_request");
    scripted.say("control", "kernel_info_reply", asked, { status: "ok" });
    scripted.replace();
    scripted.say("iopub", "status", asked, { execution_state: "busy" });
    assert.equal(await isSettled(scripted.started), false);
    scripted.end();
    await assert.rejects(scripted.started, { code: "failed_precondition" });
  });

  for (const listens of [false, true]) {
    it(`that starts in a sandbox which the server leaves is not waited for, ${listens ? "after" : "before"} it listens`, async () => {
      const scripted = new StartedKernel({ listens });
      if (listens) await scripted.asked("kernel_info_request");
      await delay(HEARD_MS);
      const given = assert.rejects(scripted.started, { code: "aborted" });
      scripted.detach();
      await delay(HEARD_MS);
      scripted.stop();
      await given;
    });
  }

  for (const order of [
    ["reply", "idle"],
    ["idle", "reply"],
  ] as const) {
    it(`has done what it was asked when both halves of the end are there, here the ${order[0]} first`, async () => {
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
      // A message of another request does not complete this one.
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

  it("is not waited for after a question that nobody needs the answer of any more", async () => {
    const open = new Map<string, KernelRequest>();
    const request = new KernelRequest(open);
    open.set(request.id, request);
    request[Symbol.dispose]();
    assert.equal((await request.done).how, "finished");
    assert.equal(open.size, 0);
  });

  it("that dropped the idle of a cell has ended it by its reply, after silence on iopub", async () => {
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
