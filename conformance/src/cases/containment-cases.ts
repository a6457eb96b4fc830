import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import type { Sandbox } from "@coppice/core/backend";
import { CaseSkipped, type ConformanceCase } from "../kit/conformance-case.js";
import { chunked, type ConformanceContext } from "../kit/conformance-context.js";
import { OutputReader } from "../kit/output-reader.js";
import { requireApart } from "../kit/require-apart.js";

const MEBIBYTE = 2 ** 20;
const PROCESSES = 64;
const MEMORY_MIB = 128;
const BOMB_MS = 2_000;
const ANSWER_MS = 2_000;
/** Longest allowed block of the server's event loop. */
const MAX_BLOCK_MS = 500;
const GONE = ["unavailable", "not_found"] as const;

/** A misbehaving sandbox harms itself; not the server or other sandboxes. */
export const containmentCases: readonly ConformanceCase[] = [
  {
    name: "a file that the server reads itself is the one that was opened, wherever its path leads meanwhile",
    group: "files",
    needs: [{ program: "ln" }],
    async run(context) {
      const blob = randomBytes(2 * MEBIBYTE);
      const path = context.home("direct");
      await context.write(path, chunked(blob));
      await using file = await context.sandbox.files.read(path);
      const direct = await file.direct?.();
      if (direct === undefined) throw new CaseSkipped("its files are not handed over here");
      await context.succeed("rm direct; ln -s /etc/passwd direct");
      const target = Buffer.alloc(3 * MEBIBYTE);
      assert.equal(await direct.read(target, 5), blob.byteLength - 5);
      assert.ok(target.subarray(0, blob.byteLength - 5).equals(blob.subarray(5)));
      assert.equal(await direct.read(target, blob.byteLength), 0);
    },
  },
  {
    name: "a sandbox has no more processes than its limit, and a fork bomb in it disturbs no others",
    group: "isolation",
    needs: ["isolation", { limit: "processes" }],
    async run(context) {
      const bombed = await context.provision({ limits: { processes: PROCESSES } });
      await requireApart(context, bombed);
      // Ends by itself: a host without a working limit has to survive this.
      const script = `i=0; while [ $i -lt ${4 * PROCESSES} ]; do sleep 4 & i=$((i + 1)); echo $i; done`;
      const counting = await context.start(script, { in: bombed });
      const reader = new OutputReader(counting);
      let count = -1;
      await context.until(
        "it has counted",
        async () => {
          const before = count;
          await sleep(300);
          // Error messages of the shell stand between the counts.
          count = Math.max(0, ...(reader.text.match(/^\d+$/gm) ?? []).map(Number));
          return count === before;
        },
        10_000,
      );
      assert.ok(count <= PROCESSES, `it started ${count} processes although its limit is ${PROCESSES}`);
      assert.ok(count >= PROCESSES / 4, `it started no more than ${count} of ${PROCESSES} processes`);
      await context.within(15_000, "its processes end", reader.ended);
      const bomb = await context.start("bomb() { bomb | bomb & }; while :; do bomb; done 2> /dev/null", {
        in: bombed,
      });
      const bombReader = new OutputReader(bomb);
      await othersAnswer(context, BOMB_MS);
      await context.within(10_000, "it is destroyed", bombed.destroy());
      await bombReader.ended;
    },
  },
  {
    name: "a process cannot take more memory than its sandbox has, and no others are affected",
    group: "isolation",
    needs: ["isolation", { limit: "memoryMiB" }, { program: "dd" }],
    async run(context) {
      const hungry = await context.provision({ limits: { memoryMiB: MEMORY_MIB } });
      const script =
        'dd if=/dev/zero of=/dev/null bs=8M count=4 && exec dd if=/dev/zero of=/dev/null bs="$1" count=1';
      const eating = context.shell(script, { in: hungry, args: [`${4 * MEMORY_MIB}M`] });
      await othersAnswer(context, 500);
      const { exit } = await eating;
      assert.notEqual(exit.code, 0, `it had ${4 * MEMORY_MIB} MiB although its limit is ${MEMORY_MIB}`);
      await answersOrIsGone(context, hungry);
    },
  },
  {
    name: "the memory of a sandbox is that of all its processes and files in memory together",
    group: "isolation",
    needs: ["isolation", { limit: "memoryMiB" }, { program: "tail" }],
    async run(context) {
      const hungry = await context.provision({ limits: { memoryMiB: MEMORY_MIB } });
      // Each is well below the limit, and all are beyond twice the limit: a backend may page out what is in between.
      const script = `
        pids=
        for _ in 1 2 3 4 5 6 7 8; do
          (head -c 41943040 /dev/zero; sleep 2) | tail -c 41943040 > /dev/null & pids="$pids $!"
        done
        for pid in $pids; do wait $pid || exit 1; done`;
      const { exit } = await context.shell(script, { in: hungry });
      assert.notEqual(exit.code, 0, "eight processes had 320 MiB together");
      await answersOrIsGone(context, hungry);
      const other = await context.provision({ limits: { memoryMiB: MEMORY_MIB } });
      const filling = await context.shell("head -c 314572800 /dev/zero > /dev/shm/large", { in: other });
      assert.notEqual(filling.exit.code, 0, "a file in memory had 300 MiB");
      await answersOrIsGone(context, other);
    },
  },
  {
    name: "a guest that kills everything it can leaves a sandbox that still answers, or is gone",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      await requireApart(context);
      const other = await context.provision();
      const bystander = await context.start("i=0; while :; do i=$((i + 1)); echo $i; sleep 0.02; done", {
        in: other,
      });
      const ticks = new OutputReader(bystander);
      await ticks.sees(/^3$/m);
      for (const user of [context.user.name, "root"]) {
        const victim = await context.start("exec sleep 300");
        const killer = await context
          .start("kill -9 -1; kill -TERM 1; kill -9 1; kill -SEGV 1; kill -STOP 1; exit 0", {
            user,
          })
          .catch(ifGone);
        if (killer === undefined) break;
        await context.within(5_000, "the killer ends", killer.exit);
        const exit = await context.within(5_000, "the victim's end is known", victim.exit);
        assert.equal(exit.signal, "SIGKILL");
        if (!(await answersOrIsGone(context, context.sandbox))) break;
      }
      const seen = ticks.text.length;
      await context.until("the other sandbox goes on", () => ticks.text.length > seen);
      await bystander.kill("SIGKILL");
      await ticks.ended;
    },
  },
  {
    name: "a guest that floods its unread output disturbs no others",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      const floods = await Promise.all(
        [1, 2, 3, 4].map(() => context.start("while :; do head -c 1000000 /dev/zero; done")),
      );
      const heldMiB = process.memoryUsage().rss / 2 ** 20;
      await othersAnswer(context, 500);
      const growthMiB = process.memoryUsage().rss / 2 ** 20 - heldMiB;
      assert.ok(growthMiB < 100, `the server grew by ${Math.round(growthMiB)} MiB`);
      for (const flood of floods) await flood.kill("SIGKILL", "group");
    },
  },
];

/** Asserts that another sandbox can be made and used all the while, and that the event loop is not blocked. */
async function othersAnswer(context: ConformanceContext, durationMs: number): Promise<void> {
  const endMs = performance.now() + durationMs;
  let lastMs = performance.now();
  let standstillMs = 0;
  const beat = setInterval(() => {
    standstillMs = Math.max(standstillMs, performance.now() - lastMs);
    lastMs = performance.now();
  }, 10);
  try {
    const fresh = await context.within(3 * ANSWER_MS, "another sandbox is made", context.provision());
    for (let round = 0; round < 3 || performance.now() < endMs; round++) {
      for (const sandbox of [context.sandbox, fresh]) {
        const answer = context.succeed("echo answer", { in: sandbox });
        assert.equal(await context.within(ANSWER_MS, "another sandbox answers", answer), "answer\n");
      }
      await sleep(20);
    }
  } finally {
    clearInterval(beat);
  }
  assert.ok(standstillMs < MAX_BLOCK_MS, `the server stood still for ${Math.round(standstillMs)} ms`);
}

/** @returns false when the sandbox reports its end. @throws AssertionError when it does not answer. */
async function answersOrIsGone(context: ConformanceContext, sandbox: Sandbox): Promise<boolean> {
  const asked = answerOf(context, sandbox).catch(ifGone);
  const answer = await context.within(5_000, "the sandbox answers, or says that it has ended", asked);
  const info = sandbox.files.stat(context.user.home).catch(ifGone);
  const told = await context.within(5_000, "its files answer, or say that it has ended", info);
  if (answer === undefined || told === undefined) {
    // It may have ended between the two attempts; now it must be gone for all callers.
    await context.refuses(() => context.start("true", { in: sandbox }), GONE);
    await context.refuses(() => sandbox.files.stat(context.user.home), GONE);
    return false;
  }
  assert.equal(answer, "answer\n");
  return true;
}

/** Retries when a query's process is killed: the cause of a sandbox's end, or the memory limit, may kill it first. */
async function answerOf(context: ConformanceContext, sandbox: Sandbox): Promise<string> {
  for (;;) {
    const { exit, stdout } = await context.shell("echo answer", { in: sandbox });
    if (exit.signal !== "SIGKILL") return stdout.toString();
    await sleep(50);
  }
}

function ifGone(error: unknown): undefined {
  if (error instanceof SandboxError && GONE.some((code) => code === error.code)) return undefined;
  throw error;
}
