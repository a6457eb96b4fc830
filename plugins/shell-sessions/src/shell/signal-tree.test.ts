import assert from "node:assert/strict";
import { it } from "node:test";
import type { Process, Sandbox } from "@coppice/core/backend";
import { fakeClock } from "@coppice/core/testing";
import { signalTree } from "./signal-tree.js";

it("a helper that hangs, as one that the sandbox has put in its place, is ended", async () => {
  const clock = fakeClock();
  const kills: unknown[] = [];
  const never = new Promise<never>(() => undefined);
  const helper: Partial<Process> = {
    output: (async function* () {
      yield await never;
    })(),
    exit: never,
    kill: async (...how) => void kills.push(how),
  };
  const runtime: Partial<Sandbox> = { spawn: async () => helper as Process };
  const signalled = signalTree(runtime as Sandbox, 7, "SIGTERM", {
    includesRoot: true,
    clock,
    timeoutMs: 1_000,
  });
  await new Promise(setImmediate);
  await clock.advance(1_000);
  await signalled;
  assert.deepEqual(kills, [["SIGKILL", "group"]]);
});
