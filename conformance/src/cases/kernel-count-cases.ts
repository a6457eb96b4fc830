import assert from "node:assert/strict";
// oxlint-disable-next-line no-restricted-imports -- a promise about the host is asked of the host
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import type { Sandbox } from "@coppice/core/backend";
import type { ConformanceCase } from "../kit/conformance-case.js";
import type { ConformanceContext } from "../kit/conformance-context.js";
import { OutputReader } from "../kit/output-reader.js";
import { requireApart } from "../kit/require-apart.js";

/** More than any kernel allows by default. */
const ALL = 1_000_000;
const TAKEN_MS = 60_000;

/**
 * Takes as many of one resource as its second argument says, prints how many it got, and holds them for the seconds of
 * the third.
 */
const TAKE = `
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
name = lambda: b"coppice-%d-%d" % (os.getpid(), time.monotonic_ns())
def posix_queue():
    path = b"/" + name()
    queue = libc.mq_open(path, 0o102, 0o600, None)
    libc.mq_unlink(path)
    return queue
take = {
    "inotify instances": lambda: libc.inotify_init1(0),
    "pending signals": lambda: libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())),
    "bytes of POSIX message queues": posix_queue,
    "System V message queues": lambda: libc.msgget(0, 0o600),
    "keys": lambda: libc.syscall({"x86_64": 248}.get(os.uname().machine, 217), b"user", name(), b"x", 1, -1),
}[sys.argv[1]]
count = 0
while sys.platform == "linux" and count < int(sys.argv[2]) and take() >= 0:
    count += 1
print(count, flush=True)
time.sleep(int(sys.argv[3]))
`;

/** Source: limits that Linux counts by user (`inotify(7)`, `getrlimit(2)`, `keyrings(7)`) or by IPC namespace. */
const COUNTED = [
  "inotify instances",
  "pending signals",
  "bytes of POSIX message queues",
  "System V message queues",
  "keys",
] as const;

/** Resources that the kernel counts by user are counted by sandbox: exhausting them affects one sandbox alone. */
export const kernelCountCases: readonly ConformanceCase[] = COUNTED.map((what) => ({
  name: `a sandbox that takes all ${what} that it can takes none of another's, or of the host's`,
  group: "isolation",
  needs: ["isolation", "ownUsers", { program: "python3" }],
  async run(context) {
    const full = await context.provision();
    await requireApart(context, full);
    const count = await takeAll(context, full, what);
    // A backend may also refuse them altogether, and other systems do not have them.
    if (count === 0) return;
    for (const user of ["root", context.user.name]) {
      assert.equal(await take(context, what, user), "2", `${user} of another sandbox lacks ${what}`);
    }
    assert.equal(await takeOnHost(what), "2", `the host lacks ${what}`);
    await full.destroy();
    const again = await takeAll(context, await context.provision(), what);
    assert.ok(again > 0.9 * count, `of ${count} ${what} ${again} were given back`);
  },
}));

/** Leaves a program running that holds them. */
async function takeAll(context: ConformanceContext, sandbox: Sandbox, what: string): Promise<number> {
  const args = ["-c", TAKE, what, String(ALL), "300"];
  const taking = await context.startProgram("python3", args, { in: sandbox, user: "root" });
  const [count] = await new OutputReader(taking).sees(/^\d+(?=\n)/, TAKEN_MS);
  assert.ok(Number(count) < ALL, `it took ${count} ${what}`);
  return Number(count);
}

async function take(context: ConformanceContext, what: string, user: string): Promise<string> {
  const taking = await context.startProgram("python3", ["-c", TAKE, what, "2", "0"], { user });
  return (await context.finish(taking)).stdout.toString().trim();
}

/** As the server's own user; a host without Python is left out. */
async function takeOnHost(what: string): Promise<string> {
  try {
    const { stdout } = await promisify(execFile)("python3", ["-c", TAKE, what, "2", "0"]);
    return stdout.trim();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return "2";
    throw error;
  }
}
