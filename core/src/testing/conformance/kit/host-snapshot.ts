import { readFile, readdir } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import type { ConformanceSubject } from "./conformance-case.js";

const SETTLE_MS = 3_000;
const POLL_MS = 50;

/** Host state that a sandbox could leave changed, whatever its backend. Empty without /proc. */
export interface HostSnapshot {
  readonly mounts: ReadonlySet<string>;
  readonly descriptors: number;
  /** Child processes of this process, direct or not. */
  readonly descendants: ReadonlySet<string>;
}

export async function takeHostSnapshot(): Promise<HostSnapshot> {
  const mounts = await readFile("/proc/self/mountinfo", "utf8").catch(() => "");
  const descriptors = await readdir("/proc/self/fd").catch(() => []);
  const descendants = new Set((await findDescendants()).map(({ key }) => key));
  // Names of network namespaces are mounts, too, and processes beside this one make some.
  const lines = mounts.split("\n").filter((line) => !line.includes(" - nsfs "));
  return { mounts: new Set(lines), descriptors: descriptors.length, descendants };
}

/**
 * Describes remains of sandboxes, after a short wait for those that are on their way out. @param ids of sandboxes that
 * must have no process left.
 */
export async function findLeaks(
  subject: ConformanceSubject,
  before: HostSnapshot,
  ids: readonly string[],
): Promise<readonly string[]> {
  const endMs = performance.now() + SETTLE_MS;
  for (;;) {
    const leaks = await leaksNow(subject, before, ids);
    if (leaks.length === 0 || performance.now() > endMs) return leaks;
    await sleep(POLL_MS);
  }
}

async function leaksNow(
  subject: ConformanceSubject,
  before: HostSnapshot,
  ids: readonly string[],
): Promise<readonly string[]> {
  const now = await takeHostSnapshot();
  const descriptors = now.descriptors - before.descriptors;
  return [
    ...(await processesLeft(before, ids)),
    ...[...now.mounts].filter((mount) => !before.mounts.has(mount)).map((mount) => `mount ${mount}`),
    ...(descriptors > 0 ? [`${descriptors} more open descriptors`] : []),
    ...((await subject.leaks?.()) ?? []),
  ];
}

/**
 * Processes of sandboxes, recognised by signs that a backend cannot avoid: this process started them, or an id is in
 * their environment, arguments, control group or mounts.
 */
async function processesLeft(before: HostSnapshot, ids: readonly string[]): Promise<string[]> {
  const started = (await findDescendants()).filter(({ key }) => !before.descendants.has(key));
  const found = new Set(started.map(({ pid }) => pid));
  await Promise.all(
    (await listPids()).map(async (pid) => {
      const traces = ["environ", "cmdline", "cgroup", "mountinfo"].map((file) => readOf(pid, file));
      const text = (await Promise.all(traces)).join("\n");
      if (pid !== process.pid && ids.some((id) => text.includes(id)) && !(await isZombie(pid)))
        found.add(pid);
    }),
  );
  return Promise.all(
    [...found].map(async (pid) => {
      const command = await readOf(pid, "cmdline");
      return `process ${pid} (${command.replaceAll("\0", " ").trim()})`;
    }),
  );
}

interface Descendant {
  readonly pid: number;
  /** With the start time: pids are reused. */
  readonly key: string;
}

async function findDescendants(): Promise<readonly Descendant[]> {
  const all = await Promise.all(
    (await listPids()).map(async (pid) => {
      // After the name, which may contain anything: state, parent, …; the 20th of them is the start.
      const [state, parent, ...rest] = (await readOf(pid, "stat")).replace(/^.*\) /s, "").split(" ");
      return { pid, parent: Number(parent), isAlive: state !== "Z", key: `${pid} ${rest[17]}` };
    }),
  );
  const found = new Map<number, (typeof all)[number]>();
  let children = all.filter(({ parent }) => parent === process.pid);
  while (children.length > 0) {
    for (const child of children) found.set(child.pid, child);
    children = all.filter(({ pid, parent }) => found.has(parent) && !found.has(pid));
  }
  return [...found.values()].filter(({ isAlive }) => isAlive);
}

async function isZombie(pid: number): Promise<boolean> {
  return /\) Z /.test(await readOf(pid, "stat"));
}

async function listPids(): Promise<readonly number[]> {
  return (await readdir("/proc").catch(() => [])).filter((name) => /^\d+$/.test(name)).map(Number);
}

function readOf(pid: number, file: string): Promise<string> {
  return readFile(`/proc/${pid}/${file}`, "latin1").catch(() => "");
}
