import { type Logger, messageOf } from "@coppice/core";
import type { VolumeId } from "@coppice/core/backend";
import type { DiskWatch, Watched } from "./disk-watch.js";

export interface VolumeWatchOptions {
  readonly diskWatch: DiskWatch;
  readonly log: Logger;
  /** Size of a volume, and what it uses now. @throws where it is gone. */
  readonly measure: (id: VolumeId) => Promise<{ readonly sizeBytes: number; readonly usedBytes: number }>;
  /** Makes it read-only for all later sandboxes. */
  readonly close: (id: VolumeId) => Promise<void>;
}

/** Excess over its size at which a volume is closed, as that of a sandbox at which it is ended. */
const TOLERANCE = 1 / 16;

/** A sandbox that may write to a volume. */
interface User {
  readonly id: string;
  /** Equal texts mean that no process of it has run in between. */
  readonly clock: () => string | undefined;
  /** Runs something while no process of it runs. */
  readonly whileStill: <T>(work: () => Promise<T>) => Promise<T>;
  /** Ends it. */
  readonly end: () => Promise<void>;
}

/** Ends the sandboxes that may write to a volume which exceeds its size, where the file system has no quotas. */
export class VolumeWatch {
  readonly #options: VolumeWatchOptions;
  readonly #users = new Map<VolumeId, { readonly watched: Watched; readonly all: Set<User> }>();

  constructor(options: VolumeWatchOptions) {
    this.#options = options;
  }

  /** Watches volumes that a sandbox may write to. @returns what ends that. */
  use(volumes: readonly VolumeId[], user: User): () => void {
    const ids = [...new Set(volumes)];
    for (const id of ids) {
      const known = this.#users.get(id) ?? { watched: this.#watched(id), all: new Set() };
      known.all.add(user);
      if (this.#users.has(id)) continue;
      this.#users.set(id, known);
      this.#options.diskWatch.add(known.watched, false);
    }
    return () => {
      for (const id of ids) {
        const known = this.#users.get(id);
        known?.all.delete(user);
        if (known === undefined || known.all.size > 0) continue;
        this.#users.delete(id);
        this.#options.diskWatch.remove(known.watched);
      }
    };
  }

  #watched(id: VolumeId): Watched {
    const { close, log, measure } = this.#options;
    // Known with the first measurement, which is made at once.
    let limitBytes = Infinity;
    let last = { clocks: "", usedBytes: 0 };
    const look = async (): Promise<number> => {
      const { sizeBytes, usedBytes } = await measure(id);
      limitBytes = sizeBytes * (1 + TOLERANCE);
      return usedBytes;
    };
    return {
      id,
      get limitBytes() {
        return limitBytes;
      },
      measure: async () => {
        // In one order everywhere: no two measurements wait for each other.
        const users = [...(this.#users.get(id)?.all ?? [])].toSorted((one, other) =>
          one.id < other.id ? -1 : 1,
        );
        const known = users.map((user) => `${user.id} ${user.clock() ?? performance.now()}`).join();
        if (users.length > 0 && known === last.clocks) return last.usedBytes;
        // Programs can watch how far a measurement is, and move files to where it has been.
        const still = users.reduceRight((work, user) => () => user.whileStill(work), look);
        const usedBytes = await still();
        last = { clocks: known, usedBytes };
        return usedBytes;
      },
      end: async (usedBytes) => {
        const users = [...(this.#users.get(id)?.all ?? [])];
        // One that is just starting, and still may write, is watched anew.
        this.#users.delete(id);
        log.warn({ volume: id, usedBytes }, "a volume exceeds its size; it is read-only from now on");
        await close(id);
        for (const { end } of users) {
          await end().catch((error: unknown) => {
            log.warn({ volume: id, reason: messageOf(error) }, "a sandbox of a full volume did not end");
          });
        }
      },
    };
  }
}
