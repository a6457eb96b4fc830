import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { TOOLCHAIN } from "./project.mjs";

/** Time without the lock after which the reason is printed. */
const QUIET_MS = 500;
const HOLD = ["sh", "-c", "echo locked; exec cat"];

/** A program of the system that holds a lock of the kernel's while another runs, by platform. */
const LOCKERS = {
  // The folder itself: a file of it can be a hard link of another checkout's.
  linux: ["flock", "--close", TOOLCHAIN, ...HOLD],
  freebsd: ["lockf", "-k", join(TOOLCHAIN, "lock"), ...HOLD],
};

let holder;

/**
 * Waits until no other process sets up or compiles this checkout. The lock ends with this process, however that ends.
 * Without the system's program for it there is none.
 */
export async function takeSetupLock() {
  const locker = LOCKERS[process.platform];
  if (locker === undefined) return;
  await mkdir(TOOLCHAIN, { recursive: true }).catch(() => undefined);
  const [program, ...words] = locker;
  // Its input is a pipe, which closes when this process is gone.
  const child = spawn(program, words, { stdio: ["pipe", "pipe", "ignore"] });
  const telling = setTimeout(
    () => console.log("Another set-up of this checkout is running: waiting for its end …"),
    QUIET_MS,
  );
  // Of a locker that does not exist, or has ended.
  child.stdin.on("error", () => undefined);
  const ended = once(child, "close").catch(() => undefined);
  await Promise.race([once(child.stdout, "data"), ended]);
  clearTimeout(telling);
  holder = child;
  for (const each of [child, child.stdin, child.stdout]) each.unref();
}

/** Lets others set up and compile, because from here on this process only uses what is there. */
export function releaseSetupLock() {
  holder?.stdin.end();
  holder = undefined;
}
