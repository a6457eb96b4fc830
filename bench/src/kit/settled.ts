import { cpus } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { spawnToEnd } from "./spawn-to-end.js";

const LOOK_MS = 200;
const LONGEST_MS = 10_000;
/** A wait is at most so many times as long as what is measured after it. */
const TIMES = 10;
/** Part of all processors' time. */
const IDLE = 0.95;

/**
 * Resolves when disks have what was written and the processors are idle, after ten seconds at most, and sooner before a
 * short measurement. Without it the kernel's work for one measurement, as writing back a file or removing network
 * namespaces, is counted with the next.
 * @param seconds length of the measurement.
 */
export async function settled(seconds: number): Promise<void> {
  const mostLooks = Math.min(LONGEST_MS, TIMES * seconds * 1000) / LOOK_MS;
  // What is shorter than a look measures nothing, and all disks of a busy machine take longer than all else.
  if (mostLooks < 1) return;
  await spawnToEnd("sync");
  for (let looks = 0; looks < mostLooks; looks += 1) {
    const before = processorTimes();
    await sleep(LOOK_MS);
    const after = processorTimes();
    if (after.idle - before.idle >= IDLE * (after.all - before.all)) return;
  }
}

function processorTimes(): { readonly idle: number; readonly all: number } {
  let idle = 0;
  let all = 0;
  for (const { times } of cpus()) {
    idle += times.idle;
    all += Object.values(times).reduce((sum, time) => sum + time, 0);
  }
  return { idle, all };
}
