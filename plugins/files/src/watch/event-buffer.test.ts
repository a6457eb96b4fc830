import assert from "node:assert/strict";
import { it } from "node:test";
import { SandboxError } from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { EventBuffer } from "./event-buffer.js";

const created = (name: string) => ({ name, type: "create" }) as const;

it("Events wait in order until they are taken", () => {
  const buffer = new EventBuffer(10);
  buffer.push(created("a"));
  buffer.push(created("b"));
  assert.deepEqual(
    buffer.take().map(({ name }) => name),
    ["a", "b"],
  );
  assert.deepEqual(buffer.take(), []);
});

it("A reader that was too slow gets what there is, then an error, never a gap", () => {
  const buffer = new EventBuffer(2);
  for (const name of ["a", "b", "c", "d"]) buffer.push(created(name));
  assert.equal(buffer.take().length, 2);
  for (let call = 0; call < 2; call++) {
    assert.throws(() => buffer.take(), { code: "resource_exhausted", message: /events were lost/ });
  }
});

it("A reader waits for an event, a failure, the time or its own end", async () => {
  const clock = fakeClock();
  const buffer = new EventBuffer(2);
  const wait = (signal = new AbortController().signal) => buffer.wait({ clock, timeoutMs: 1000, signal });

  const untilEvent = wait();
  buffer.push(created("a"));
  await untilEvent;
  await wait();
  buffer.take();

  const untilTime = wait();
  await clock.advance(1000);
  await untilTime;

  const stopping = new AbortController();
  const untilAbort = wait(stopping.signal);
  stopping.abort();
  await untilAbort;

  const untilFailure = wait();
  buffer.fail(new SandboxError("watch_failed", "the disk is on fire"));
  await untilFailure;
  assert.throws(() => buffer.take(), { code: "internal" });
});
