import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { it } from "node:test";
import type { Command, Process, Sandbox } from "@coppice/core/backend";
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

it("the process itself is signalled before those that descend from it", async (context) => {
  const root = spawn("/bin/sh", ["-c", "sleep 60 & echo $!; wait"], { detached: true });
  context.after(() => process.kill(-(root.pid ?? 0), "SIGKILL"));
  const [child] = (await once(root.stdout, "data")) as [Buffer];
  let signalled = "";
  const runtime: Partial<Sandbox> = {
    async spawn({ path, args: [flag = "", script = "", ...words] }: Command) {
      // A function in place of the shell's own command tells the order.
      signalled = execFileSync(path, [flag, `kill() { echo "$3"; }\n${script}`, ...words], {
        encoding: "utf8",
      });
      const output = (async function* () {})();
      return { output, exit: Promise.resolve({ code: 0 }) } as Partial<Process> as Process;
    },
  };
  const options = { includesRoot: true, clock: fakeClock(), timeoutMs: 1_000 };
  await signalTree(runtime as Sandbox, root.pid ?? 0, "SIGTERM", options);
  assert.equal(signalled, `${root.pid}\n${String(child)}`);
});
