import { cpus } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { spawnToEnd } from "./spawn-to-end.js";

const LOOK_MS = 200;
const MOST_LOOKS = 50;
/** Part of all processors' time. */
const IDLE = 0.95;

/**
 * Resolves when disks have what was written and the processors are idle, after some seconds at most. Without it the
 * kernel's work for one measurement, as writing back a file or removing network namespaces, is counted with the next.
 */
export async function settled(): Promise<void> {
  await spawnToEnd("sync");
  for (let looks = 0; looks < MOST_LOOKS; looks += 1) {
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
