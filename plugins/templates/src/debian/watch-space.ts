import { statfs } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import type { HostPrograms } from "../images/host-programs.js";
import { BuildFailure } from "../model/build-failure.js";

export interface SpaceWatch {
  readonly programs: HostPrograms;
  readonly maxBytes: number;
  /** Aborted with a BuildFailure when the directory has more, and at the end of the watch. */
  readonly ending: AbortController;
}

const WATCHED_EVERY_MS = 1_000;

/** Watches what a program writes to a directory, until it is disposed of. */
export function watchSpace(directory: string, watch: SpaceWatch): AsyncDisposable {
  const watching = untilEnded(directory, watch);
  return {
    async [Symbol.asyncDispose]() {
      watch.ending.abort();
      await watching;
    },
  };
}

/** Never rejects. */
async function untilEnded(directory: string, { programs, maxBytes, ending }: SpaceWatch): Promise<void> {
  const { signal } = ending;
  try {
    let free = await freeBytes(directory);
    let used = 0;
    while (!signal.aborted) {
      await sleep(WATCHED_EVERY_MS, undefined, { signal });
      const now = await freeBytes(directory);
      // Others write as well: counting takes its time, and tells who it was.
      if (used + free - now <= maxBytes) continue;
      free = now;
      const args = ["--summarize", "--block-size=1", "--", directory];
      const { output } = await programs.run("du", { args, cwd: "/", environment: {}, signal });
      used = Number(/^(\d+)\t/m.exec(output)?.[1] ?? 0);
      if (used > maxBytes)
        ending.abort(new BuildFailure(`the packages take more than ${maxBytes} bytes`, "base"));
    }
  } catch (error) {
    ending.abort(error);
  }
}

async function freeBytes(directory: string): Promise<number> {
  const { bavail, bsize } = await statfs(directory);
  return bavail * bsize;
}
