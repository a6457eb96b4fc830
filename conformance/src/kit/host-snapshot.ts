import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import type { ConformanceSubject } from "./conformance-case.js";

const SETTLE_MS = 3_000;
const POLL_MS = 50;

/** Host state that a sandbox could leave changed, whatever its backend. Empty without /proc. */
export interface HostSnapshot {
  readonly mounts: ReadonlySet<string>;
  readonly descriptors: number;
  /** Child processes of this process, direct or not: ids by keys that no other process gets. */
  readonly descendants: ReadonlyMap<string, string>;
}

export function takeHostSnapshot(): HostSnapshot {
  // Names of network namespaces are mounts, too, and processes beside this one make some.
  const lines = readOf("self", "mountinfo")
    .split("\n")
    .filter((line) => !line.includes(" - nsfs "));
  return {
    mounts: new Set(lines),
    descriptors: namesIn("/proc/self/fd").length,
    descendants: findDescendants(),
  };
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
  const now = takeHostSnapshot();
  const descriptors = now.descriptors - before.descriptors;
  return [
    ...processesLeft(now, before, ids),
    ...[...now.mounts].filter((mount) => !before.mounts.has(mount)).map((mount) => `mount ${mount}`),
    ...(descriptors > 0 ? [`${descriptors} more open descriptors`] : []),
    ...((await subject.leaks?.()) ?? []),
  ];
}

/**
 * Processes of sandboxes, recognised by signs that a backend cannot avoid: this process started them, or an id is in
 * their environment, arguments, control group or mounts.
 */
function processesLeft(now: HostSnapshot, before: HostSnapshot, ids: readonly string[]): string[] {
  const found = new Set<string>();
  for (const [key, pid] of now.descendants) if (!before.descendants.has(key)) found.add(pid);
  const readMounts = mountsReader();
  for (const pid of listPids()) {
    const traces = ["environ", "cmdline", "cgroup"].map((file) => readOf(pid, file));
    const text = [...traces, readMounts(pid)].join("\n");
    if (pid !== `${process.pid}` && ids.some((id) => text.includes(id)) && !isZombie(pid)) found.add(pid);
  }
  return [...found].map((pid) => `process ${pid} (${readOf(pid, "cmdline").replaceAll("\0", " ").trim()})`);
}

/** Reads the mounts that a process sees, once for all that have the same namespace and root: they are the longest. */
function mountsReader(): (pid: string) => string {
  const seen = new Map<string, string>();
  return (pid) => {
    const place = placeOf(pid);
    const mounts = seen.get(place) ?? readOf(pid, "mountinfo");
    if (place !== "") seen.set(place, mounts);
    return mounts;
  };
}

/** Mount namespace and root of a process; empty where they cannot be read. */
function placeOf(pid: string): string {
  try {
    return ["ns/mnt", "root"].map((link) => readlinkSync(`/proc/${pid}/${link}`)).join(" ");
  } catch {
    return "";
  }
}

/** Those that are alive. Their keys have the start time, since ids are reused. */
function findDescendants(): ReadonlyMap<string, string> {
  const all = listPids().map((pid) => {
    // After the name, which may contain anything: state, parent, …; the 20th of them is the start.
    const [state, parent = "", ...rest] = readOf(pid, "stat")
      .replace(/^.*\) /s, "")
      .split(" ");
    return { pid, parent, isAlive: state !== "Z", key: `${pid} ${rest[17]}` };
  });
  const found = new Map<string, (typeof all)[number]>();
  let children = all.filter(({ parent }) => parent === `${process.pid}`);
  while (children.length > 0) {
    for (const child of children) found.set(child.pid, child);
    children = all.filter(({ pid, parent }) => found.has(parent) && !found.has(pid));
  }
  return new Map([...found.values()].filter(({ isAlive }) => isAlive).map(({ key, pid }) => [key, pid]));
}

function isZombie(pid: string): boolean {
  return /\) Z /.test(readOf(pid, "stat"));
}

function listPids(): readonly string[] {
  return namesIn("/proc").filter((name) => /^\d+$/.test(name));
}

// A file of /proc is read at once: over the thread pool each would take several times the processor time, and each case
// reads hundreds.

function namesIn(directory: string): readonly string[] {
  try {
    return readdirSync(directory);
  } catch {
    return [];
  }
}

function readOf(pid: string, file: string): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, "latin1");
  } catch {
    return "";
  }
}
