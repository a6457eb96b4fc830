import assert from "node:assert/strict";
import { it } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import type { StartedCommand } from "@coppice/plugin-commands";
import { Growth } from "./growth.js";

it("Followers of a command are woken once for its output, and keep nothing of those that have left", async () => {
  let write = Promise.withResolvers<void>();
  const command = {
    id: "one",
    async *subscribe(signal: AbortSignal) {
      while (!signal.aborted) {
        await write.promise;
        yield {};
      }
    },
  } as unknown as StartedCommand;
  const growth = new Growth();
  using steady = growth.watch(command);
  const woken: string[] = [];
  const note = (name: string, promise: Promise<void>) => void promise.then(() => woken.push(name));
  const left = growth.watch(command);
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
