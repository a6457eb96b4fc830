import { readFile, readdir } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import type { ConformanceSubject } from "./conformance-case.js";

const SETTLE_MS = 3_000;
const POLL_MS = 50;

/** What of this host a sandbox could leave changed, whatever its backend. Empty where there is no /proc. */
export interface HostSnapshot {
  readonly mounts: ReadonlySet<string>;
  /** Open descriptors of this process. */
  readonly descriptors: number;
}

export async function takeHostSnapshot(): Promise<HostSnapshot> {
  const mounts = await readFile("/proc/self/mountinfo", "utf8").catch(() => "");
  const descriptors = await readdir("/proc/self/fd").catch(() => []);
  // Names of network namespaces are mounts, too, and whoever runs beside this makes some.
  const lines = mounts.split("\n").filter((line) => !line.includes(" - nsfs "));
  return { mounts: new Set(lines), descriptors: descriptors.length };
}

/**
 * What is left of sandboxes, in words; waits a little for what is on its way out.
 * @param ids of sandboxes of which no process may be left.
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
    ...(await processesOf(ids)),
    ...[...now.mounts].filter((mount) => !before.mounts.has(mount)).map((mount) => `mount ${mount}`),
    ...(descriptors > 0 ? [`${descriptors} more open descriptors`] : []),
    ...((await subject.leaks?.()) ?? []),
  ];
}

async function processesOf(ids: readonly string[]): Promise<string[]> {
  const markers = ids.map((id) => `\0E2B_SANDBOX_ID=${id}\0`);
  const pids = (await readdir("/proc").catch(() => [])).filter((name) => /^\d+$/.test(name));
  const found = await Promise.all(
    pids.map(async (pid) => {
      const environment = await readFile(`/proc/${pid}/environ`, "latin1").catch(() => "");
      if (!markers.some((marker) => `\0${environment}`.includes(marker))) return [];
      const command = await readFile(`/proc/${pid}/cmdline`, "latin1").catch(() => "");
      return [`process ${pid} (${command.replaceAll("\0", " ").trim()})`];
    }),
  );
  return found.flat();
}
