import { readdir } from "node:fs/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { eventually, SeededRandom } from "@coppice/core/testing";

/** Seed of the first round; each further round has the next number. `COPPICE_FUZZ_SEED` replaces it. */
const FIRST_SEED = Number(process.env["COPPICE_FUZZ_SEED"] ?? 20_260_101);
const AT_A_TIME = 8;
const MIB = 2 ** 20;

/**
 * Runs rounds with known seeds, some at a time.
 * @throws Error with the seed with which the failed round can be repeated.
 */
export async function fuzz(rounds: number, round: (random: SeededRandom) => Promise<void>): Promise<void> {
  const seeds = Array.from({ length: rounds }, (_, index) => FIRST_SEED + index).values();
  const work = async (): Promise<void> => {
    for (const seed of seeds) {
      try {
        await round(new SeededRandom(seed));
      } catch (error) {
        throw new Error(`fails again with COPPICE_FUZZ_SEED=${seed}: ${String(error)}`, { cause: error });
      }
    }
  };
  await Promise.all(Array.from({ length: AT_A_TIME }, work));
}

/** Resources of a process. */
interface Holdings {
  readonly heapMiB: number;
  /** Open files, sockets and pipes. Undefined where the system does not tell. */
  readonly descriptors: number | undefined;
}

/**
 * Runs something twice, and requires that the second run leaves nothing behind; the first may fill caches.
 * @throws Error when this process holds more resources afterwards.
 */
export async function withoutGrowth(
  act: () => Promise<void>,
  { heapMiB = 8, descriptors = 8 } = {},
): Promise<void> {
  await act();
  const before = await holdings();
  await act();
  await eventually(
    `no more than before: ${JSON.stringify(before)}`,
    async () => {
      const now = await holdings();
      const isMore =
        now.heapMiB > before.heapMiB + heapMiB ||
        (now.descriptors ?? 0) > (before.descriptors ?? 0) + descriptors;
      return !isMore;
    },
    10_000,
  );
}

async function holdings(): Promise<Holdings> {
  setFlagsFromString("--expose-gc");
  (runInNewContext("gc") as () => void)();
  const descriptors = await readdir("/proc/self/fd").catch(() => undefined);
  return { heapMiB: process.memoryUsage().heapUsed / MIB, descriptors: descriptors?.length };
}

/** Bytes with some of them changed, missing, doubled or cut off. */
export function mutilated(random: SeededRandom, bytes: Buffer): Buffer {
  let result = Buffer.from(bytes);
  for (let change = random.below(4); change > 0 && result.length > 0; change -= 1) {
    const at = random.below(result.length);
    switch (random.below(4)) {
      case 0:
        result[at] = random.below(256);
        break;
      case 1:
        result = result.subarray(0, at);
        break;
      case 2:
        result = Buffer.concat([result.subarray(0, at), result.subarray(at + 1 + random.below(9))]);
        break;
      default:
        result = Buffer.concat([result.subarray(0, at), random.bytes(random.below(6)), result.subarray(at)]);
    }
  }
  return result;
}
