import assert from "node:assert/strict";
import { before, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { Sandbox } from "@e2b/code-interpreter";
import { endOf, TIMED_OUT } from "../../harness/clients/end-of-call.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";

/** Longest time from a call's time-out to its end. */
const LATEST_MS = 2_000;
const MEMORY_MIB = 400;
const PROCESSES = 100;
const SLOWEST_MS = 60_000;

const DIED = "ContextRestarting";

interface Disaster {
  readonly what: string;
  readonly code: string;
  readonly timeoutMs: number;
  /** Allowed ends of the call: timed out, the name of an error, or undefined for none. */
  readonly ends: readonly (string | undefined)[];
  /** True when earlier variables still exist afterwards; undefined when both may happen. */
  readonly keepsState: boolean | undefined;
  /** Without limits it would harm the host. */
  readonly needsLimits?: boolean;
}

const DISASTERS: readonly Disaster[] = [
  { what: "os._exit", code: "import os; os._exit(1)", timeoutMs: 5_000, ends: [DIED], keepsState: false },
  {
    what: "a segmentation fault",
    code: "import ctypes; ctypes.string_at(0)",
    timeoutMs: 5_000,
    ends: [DIED],
    keepsState: false,
  },
  {
    what: "kill -9",
    code: "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    timeoutMs: 5_000,
    ends: [DIED],
    keepsState: false,
  },
  { what: "exit()", code: "exit()", timeoutMs: 5_000, ends: [undefined], keepsState: false },
  {
    what: "an endless loop",
    code: "while True: pass",
    timeoutMs: 500,
    ends: [TIMED_OUT],
    keepsState: true,
  },
  {
    what: "a lock that is never released",
    code: "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    timeoutMs: 500,
    ends: [TIMED_OUT],
    keepsState: true,
  },
  {
    what: "C code that holds the interpreter and hears no signal",
    code: "import ctypes, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nctypes.PyDLL(None).sleep(60)",
    timeoutMs: 500,
    ends: [TIMED_OUT],
    keepsState: false,
  },
  {
    what: "a kernel that is stopped",
    code: "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    timeoutMs: 15_000,
    ends: [DIED],
    keepsState: false,
  },
  {
    what: "a gigabyte of output",
    code: "for _ in range(1000): print('x' * 1_000_000)",
    timeoutMs: 2_500,
    ends: [TIMED_OUT, undefined],
    keepsState: true,
  },
  {
    what: "more memory than there is",
    code: `eaten = b"x" * ${4 * MEMORY_MIB * 2 ** 20}`,
    timeoutMs: 10_000,
    ends: [DIED],
    keepsState: false,
    needsLimits: true,
  },
  {
    what: "a fork bomb",
    code: [
      "import os, time",
      "while True:",
      "    try: os.fork()",
      "    except OSError: time.sleep(0.05)",
    ].join("\n"),
    timeoutMs: 2_000,
    ends: [TIMED_OUT],
    keepsState: undefined,
    needsLimits: true,
  },
];

const SETTINGS = {
  "jupyter": {
    interruptGrace: "3s",
    maxOutput: "64MiB",
    heartbeat: { interval: "500ms", maxMisses: 6 },
  },
  "linux-namespaces": { limits: { memoryMiB: MEMORY_MIB, processes: PROCESSES } },
};

onEachBackend(
  "kernels and the worst that can happen to them",
  ({ backend, sandbox }) => {
    let neighbour: Sandbox;
    before(async () => {
      neighbour = await Sandbox.create();
    });

    const disasters = DISASTERS.filter(({ needsLimits }) => backend !== "local-process" || !needsLimits);
    for (const { what, code, timeoutMs, ends, keepsState } of disasters) {
      it(`${what}: the call ends, the next one works, a neighbour notices nothing`, async () => {
        await sandbox().runCode("kept = 42");
        await neighbour.runCode("count = 0");
        const isOver = new AbortController();
        const counting = count(neighbour, isOver.signal);

        const ended = await Promise.race([
          endOf(sandbox().runCode(code, { timeoutMs })),
          delay(timeoutMs + LATEST_MS, `nothing after ${timeoutMs + LATEST_MS} ms`),
        ]);
        assert.ok(ends.includes(ended), `${ended}, not ${ends.join(" or ")}`);

        const next = await sandbox().runCode("'kept' in globals()", { timeoutMs: SLOWEST_MS });
        assert.equal(next.error, undefined);
        if (keepsState !== undefined) assert.equal(next.text, keepsState ? "True" : "False");
        isOver.abort();
        assert.ok((await counting) > 0);
      });
    }
  },
  { settings: SETTINGS },
);

/** Runs one cell after the other until the signal; resolves with their number. */
async function count(neighbour: Sandbox, signal: AbortSignal): Promise<number> {
  let cells = 0;
  do {
    const { text, error } = await neighbour.runCode("count += 1; count", { timeoutMs: SLOWEST_MS });
    assert.equal(error, undefined);
    assert.equal(text, String(++cells));
    await delay(50);
  } while (!signal.aborted);
  return cells;
}
