import { closeSync, openSync, readdirSync, readlinkSync, readSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import type { ConformanceSubject } from "./conformance-case.js";

const SETTLE_MS = 3_000;
const POLL_MS = 50;

/** Host state that a sandbox could leave changed, whatever its backend. Empty without /proc. */
export interface HostSnapshot {
  readonly mounts: ReadonlySet<string>;
  readonly descriptors: number;
  /** Those that are alive, without the kernel's own and this one. */
  readonly processes: readonly HostProcess[];
  /** Child processes of this process, direct or not: ids by keys that no other process gets. */
  readonly descendants: ReadonlyMap<string, string>;
}

interface HostProcess {
  readonly pid: string;
  readonly parent: string;
  /** Differs from that of a later process with the same id. */
  readonly key: string;
}

/** Mounts of processes beside this one: names of network namespaces, and roots that Debian is installed in. */
const OF_OTHERS = / - nsfs | \/run\/netns |\/mmdebstrap\./;

export function takeHostSnapshot(): HostSnapshot {
  const lines = readOf("self", "mountinfo")
    .split("\n")
    .filter((line) => !OF_OTHERS.test(line));
  const processes = listProcesses();
  return {
    mounts: new Set(lines),
    descriptors: namesIn("/proc/self/fd").length,
    processes,
    descendants: findDescendants(processes),
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
    const isLast = performance.now() > endMs;
    const now = takeHostSnapshot();
    const leaks = leaksAtHand(now, before);
    // What takes longer to find is looked for once these are gone.
    if (leaks.length === 0 || isLast)
      leaks.push(...processesOf(now, ids), ...((await subject.leaks?.()) ?? []));
    if (leaks.length === 0 || isLast) return [...new Set(leaks)];
    await sleep(POLL_MS);
  }
}

function leaksAtHand(now: HostSnapshot, before: HostSnapshot): string[] {
  const descriptors = now.descriptors - before.descriptors;
  const children = [...now.descendants].filter(([key]) => !before.descendants.has(key));
  return [
    ...children.map(([, pid]) => describeProcess(pid)),
    ...[...now.mounts].filter((mount) => !before.mounts.has(mount)).map((mount) => `mount ${mount}`),
    ...(descriptors > 0 ? [`${descriptors} more open descriptors`] : []),
  ];
}

/** Processes of sandboxes, by a sign that a backend cannot avoid: an id is in their environment, arguments, control group or mounts. */
function processesOf({ processes }: HostSnapshot, ids: readonly string[]): string[] {
  const readMounts = mountsReader();
  const hasId = (text: string): boolean => ids.some((id) => text.includes(id));
  return processes
    .filter(
      ({ pid }) =>
        ["environ", "cmdline", "cgroup"].some((file) => hasId(readOf(pid, file))) || hasId(readMounts(pid)),
    )
    .map(({ pid }) => describeProcess(pid));
}

function describeProcess(pid: string): string {
  return `process ${pid} (${readOf(pid, "cmdline").replaceAll("\0", " ").trim()})`;
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

/** A flag of the kernel's own processes, PF_KTHREAD. */
const KERNEL_THREAD = 0x200000;

function listProcesses(): readonly HostProcess[] {
  return namesIn("/proc")
    .filter((name) => /^\d+$/.test(name) && name !== `${process.pid}`)
    .flatMap((pid) => {
      // After the name, which may contain anything: state, parent, …; the 7th has flags, the 20th is the start.
      const [state, parent = "", ...rest] = readOf(pid, "stat")
        .replace(/^.*\) /s, "")
        .split(" ");
      const isMeant = parent !== "" && state !== "Z" && (Number(rest[4]) & KERNEL_THREAD) === 0;
      return isMeant ? [{ pid, parent, key: `${pid} ${rest[17]}` }] : [];
    });
}

function findDescendants(all: readonly HostProcess[]): ReadonlyMap<string, string> {
  const found = new Map<string, HostProcess>();
  let children = all.filter(({ parent }) => parent === `${process.pid}`);
  while (children.length > 0) {
    for (const child of children) found.set(child.pid, child);
    children = all.filter(({ pid, parent }) => found.has(parent) && !found.has(pid));
  }
  return new Map([...found.values()].map(({ key, pid }) => [key, pid]));
}

// A file of /proc is read at once: over the thread pool each would take several times the processor time, and each case
// reads hundreds. A buffer of its own for each, as `readFileSync` has, would take as much again.

const buffer = Buffer.allocUnsafe(64 * 1024);

function namesIn(directory: string): readonly string[] {
  try {
    return readdirSync(directory);
  } catch {
    return [];
  }
}

function readOf(pid: string, file: string): string {
  try {
    const descriptor = openSync(`/proc/${pid}/${file}`, "r");
    try {
      let text = "";
      for (let bytes; (bytes = readSync(descriptor, buffer)) > 0;)
        text += buffer.toString("latin1", 0, bytes);
      return text;
    } finally {
      closeSync(descriptor);
    }
  } catch {
    return "";
  }
}
