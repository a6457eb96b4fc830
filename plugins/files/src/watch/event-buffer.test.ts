import assert from "node:assert/strict";
import { it } from "node:test";
import { MemoryRoom, SandboxError } from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { EventBuffer } from "./event-buffer.js";
import { REASONS } from "../reasons.js";

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

it("Where the room of all is full, the reader that has the most to take loses it, and gets an error", () => {
  const room = new MemoryRoom(1_000_000);
  const [evil, good] = ["evil", "good"].map((tenant) => {
    const buffer: EventBuffer = new EventBuffer(
      10_000,
      room.open({ tenant, sandbox: tenant, giveUp: () => buffer.drop() }),
    );
    return buffer;
  });
  for (let count = 0; count < 100; count++) good?.push(created("x".repeat(4000)));
  for (let count = 0; count < 300; count++) evil?.push(created("x".repeat(4000)));
  assert.throws(() => evil?.take(), { code: "resource_exhausted", message: /files.maxHeldEvents is full/ });
  good?.push(created("later"));
  assert.equal(good?.take().length, 101);
  for (let count = 0; count < 200; count++) good?.push(created("x".repeat(4000)));
  assert.equal(good?.take().length, 200, "what was taken counts no more");
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
  buffer.fail(new SandboxError(REASONS.watch_failed, "the disk is on fire"));
  await untilFailure;
  assert.throws(() => buffer.take(), { code: "internal" });
});
