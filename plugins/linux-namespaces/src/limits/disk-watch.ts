import { statfs } from "node:fs/promises";
import { type Logger, messageOf } from "@coppice/core";
import type { VolumeId } from "@coppice/core/backend";

/** A sandbox whose disk limit only this watch enforces. */
export interface Watched {
  readonly id: string;
  readonly limitBytes: number;
  measure(): Promise<number>;
  end(usedBytes: number): Promise<void>;
}

interface Known {
  usedBytes: number;
  /** Free bytes of the file system at the last measurement, with those of its free inodes. */
  freeBytes: number;
  atMs: number;
  isBusy: boolean;
}

/** Interval of statfs(2), which costs almost nothing. */
const POLL_INTERVAL_MS = 250;
/** Interval of a look at all sandboxes, whose limits may have changed. */
const LOOK_INTERVAL_MS = 1_000;
/** Maximum age of a measurement: space that one sandbox frees hides what another one takes. */
const MAX_MEASUREMENT_AGE_MS = 60_000;
const AT_ONCE = 4;
/** Least that a file counts as; native/disk.c. */
const ENTRY_BYTES = 4_096;

const ANY_TIME = { freeBytes: Infinity, atMs: -Infinity };

/**
 * Ends sandboxes that exceed their disk limit on a file system without quotas. A measurement looks at every file, so a
 * sandbox is measured only when enough space has gone since its last measurement to exceed its limit, and once a
 * minute.
 */
export class DiskWatch {
  readonly #directory: string;
  readonly #log: Logger;
  readonly #known = new Map<Watched, Known>();
  #timer: NodeJS.Timeout | undefined;
  #isLooking = false;
  #busy = 0;
  /** Until that moment, and while more than that is free, no sandbox is due to be measured. */
  #nextDue = ANY_TIME;

  constructor(directory: string, log: Logger) {
    this.#directory = directory;
    this.#log = log;
  }

  /** @param isNew true for a sandbox that uses no space yet. */
  add(watched: Watched, isNew: boolean): void {
    const [usedBytes, atMs] = isNew ? [0, performance.now()] : [Infinity, -Infinity];
    this.#known.set(watched, { usedBytes, freeBytes: NaN, atMs, isBusy: false });
    this.#nextDue = ANY_TIME;
    this.#timer ??= setInterval(() => void this.#look(), POLL_INTERVAL_MS).unref();
    // Reads the free space before any process of the sandbox can write.
    void this.#look();
  }

  remove(watched: Watched): void {
    this.#known.delete(watched);
    if (this.#known.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  async #look(): Promise<void> {
    if (this.#isLooking) return;
    this.#isLooking = true;
    try {
      const freeBytes = await this.#free();
      const nowMs = performance.now();
      if (freeBytes > this.#nextDue.freeBytes && nowMs < this.#nextDue.atMs) return;
      const nextDue = { freeBytes: -Infinity, atMs: nowMs + LOOK_INTERVAL_MS };
      this.#nextDue = nextDue;
      const due: { readonly watched: Watched; readonly known: Known; readonly beyondBytes: number }[] = [];
      for (const [watched, known] of this.#known) {
        if (Number.isNaN(known.freeBytes)) known.freeBytes = freeBytes;
        const dueBelowBytes = known.freeBytes - (watched.limitBytes - known.usedBytes);
        const beyondBytes = dueBelowBytes - freeBytes;
        const isOld = nowMs - known.atMs > MAX_MEASUREMENT_AGE_MS;
        nextDue.freeBytes = Math.max(nextDue.freeBytes, dueBelowBytes);
        nextDue.atMs = Math.min(nextDue.atMs, known.atMs + MAX_MEASUREMENT_AGE_MS);
        if (!known.isBusy && (beyondBytes >= 0 || isOld)) due.push({ watched, known, beyondBytes });
      }
      due.sort((one, other) => other.beyondBytes - one.beyondBytes);
      for (const { watched, known } of due.slice(0, AT_ONCE - this.#busy))
        void this.#measure(watched, known, { freeBytes, atMs: nowMs });
    } catch (error) {
      this.#log.warn({ err: error }, "free space of the disk is unknown");
    } finally {
      this.#isLooking = false;
    }
  }

  /** @param before the free bytes before the measurement: what is written meanwhile is counted twice, not missed. */
  async #measure(watched: Watched, known: Known, before: Pick<Known, "freeBytes" | "atMs">): Promise<void> {
    known.isBusy = true;
    this.#busy++;
    try {
      const usedBytes = await watched.measure();
      Object.assign(known, { ...before, usedBytes });
      this.#nextDue = ANY_TIME;
      if (usedBytes > watched.limitBytes && this.#known.has(watched)) {
        this.remove(watched);
        await watched.end(usedBytes);
      }
    } catch (error) {
      // The sandbox may have ended.
      Object.assign(known, { freeBytes: NaN, atMs: performance.now(), usedBytes: 0 });
      this.#nextDue = ANY_TIME;
      const fields = { sandbox: watched.id, reason: messageOf(error) };
      if (this.#known.has(watched)) this.#log.warn(fields, "disk usage of the sandbox could not be measured");
    } finally {
      this.#busy--;
      known.isBusy = false;
    }
  }

  async #free(): Promise<number> {
    const { bfree, bsize, ffree } = await statfs(this.#directory);
    return bfree * bsize + ffree * ENTRY_BYTES;
  }
}

interface VolumeWatchOptions {
  readonly diskWatch: DiskWatch;
  readonly log: Logger;
  readonly measure: (id: VolumeId) => Promise<{ readonly sizeBytes: number; readonly usedBytes: number }>;
  /** Makes it read-only for all later sandboxes. */
  readonly close: (id: VolumeId) => Promise<void>;
}

/** Excess over its size at which a volume is closed, as that of a sandbox at which it is ended. */
const TOLERANCE = 1 / 16;

interface User {
  readonly id: string;
  /** Equal texts mean that no process of it has run in between. */
  readonly clock: () => string | undefined;
  /** Runs something while no process of it runs. */
  readonly whileStill: <T>(work: () => Promise<T>) => Promise<T>;
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
