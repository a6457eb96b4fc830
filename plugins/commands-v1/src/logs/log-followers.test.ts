import assert from "node:assert/strict";
import { it } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import type { StartedCommand } from "@coppice/plugin-commands";
import { LogFollowers } from "./log-followers.js";

it("Followers of a command are woken once for its output, and keep nothing of those that have left", async () => {
  let write = Promise.withResolvers<void>();
  const command = {
    id: "one",
    async *subscribe(signal: AbortSignal) {
      while (!signal.aborted) {
        await write.promise;
        yield { stream: "stdout", data: Buffer.from("x"), offset: 0 };
      }
    },
  } as unknown as StartedCommand;
  const followers = new LogFollowers();
  using steady = followers.watch(command);
  const woken: string[] = [];
  const note = (name: string, promise: Promise<void>) => void promise.then(() => woken.push(name));
  const left = followers.watch(command);
  note("left", left.grown());
  left[Symbol.dispose]();
  // A heartbeat takes the next one.
  note("void", steady.grown());
  note("steady", steady.grown());
  const { resolve } = write;
  write = Promise.withResolvers();
  resolve();
  await nextTurn();
  assert.deepEqual(woken, ["steady"]);
});

it("A follower reads new output from memory, as long as it is kept and the command runs", async () => {
  const pieces = ["abc", "defg", "x".repeat(64 * 1024)].map((text) => Buffer.from(text));
  const next = [0, 1, 2, 3].map(() => Promise.withResolvers<void>());
  const command = {
    id: "one",
    async *subscribe() {
      let offset = 0;
      for (const [index, data] of pieces.entries()) {
        await next[index]?.promise;
        yield { stream: "stdout", data, offset };
        offset += data.length;
      }
      await next[3]?.promise;
    },
  } as unknown as StartedCommand;
  const followers = new LogFollowers();
  using watched = followers.watch(command);
  const read = (cursor: number, limit: number): [string, number] | undefined => {
    const page = watched.recent(cursor, limit);
    return page && [Buffer.concat(page.pieces.map(({ data }) => data)).toString(), page.nextCursor];
  };
  assert.equal(read(0, 100), undefined);
  for (const index of [0, 1]) {
    next[index]?.resolve();
    await nextTurn();
  }
  assert.deepEqual(read(0, 100), ["abcdefg", 7]);
  assert.deepEqual(read(2, 3), ["cde", 5]);
  assert.deepEqual(read(7, 3), ["", 7]);
  assert.equal(read(8, 3), undefined, "a cursor in the future");
  next[2]?.resolve();
  await nextTurn();
  assert.equal(read(2, 3), undefined, "it is no longer kept");
  assert.deepEqual(read(7, 3), ["xxx", 10]);
  next[3]?.resolve();
  await nextTurn();
  assert.equal(read(7, 3), undefined, "the log has how it ended");
});
