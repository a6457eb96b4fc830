import { statfs } from "node:fs/promises";
import { type Logger, messageOf } from "@coppice/core";

/** Something that may use so much of the disk, and that nothing but this watch holds to it. */
export interface Watched {
  readonly id: string;
  readonly limitBytes: number;
  /** Bytes that it takes up now. */
  measure(): Promise<number>;
  /** Makes it use no more. */
  end(usedBytes: number): Promise<void>;
}

interface Known {
  usedBytes: number;
  /** Free bytes of the file system at that time. */
  freeBytes: number;
  atMs: number;
  isBusy: boolean;
}

/** How often the free space is looked at, which costs next to nothing. */
const LOOK_EVERY_MS = 250;
/** However little space went: what one sandbox frees hides what another one takes. */
const MEASURED_EVERY_MS = 60_000;
const AT_ONCE = 4;

/**
 * Ends what goes past its share of a file system that holds nobody to one. Measuring means to look at every file, so
 * each is measured when so much space has gone since the last time that it could be past its limit, and each minute.
 */
export class DiskWatch {
  readonly #directory: string;
  readonly #log: Logger;
  readonly #known = new Map<Watched, Known>();
  #timer: NodeJS.Timeout | undefined;
  #isLooking = false;
  #busy = 0;

  constructor(directory: string, log: Logger) {
    this.#directory = directory;
    this.#log = log;
  }

  /** @param isNew it takes up nothing yet. */
  add(watched: Watched, isNew: boolean): void {
    const [usedBytes, atMs] = isNew ? [0, performance.now()] : [Infinity, -Infinity];
    this.#known.set(watched, { usedBytes, freeBytes: NaN, atMs, isBusy: false });
    this.#timer ??= setInterval(() => void this.#look(), LOOK_EVERY_MS).unref();
    // Free space before any process of it can have written.
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
      const due: { readonly watched: Watched; readonly known: Known; readonly beyondBytes: number }[] = [];
      for (const [watched, known] of this.#known) {
        if (Number.isNaN(known.freeBytes)) known.freeBytes = freeBytes;
        const beyondBytes = known.freeBytes - freeBytes - (watched.limitBytes - known.usedBytes);
        const isOld = performance.now() - known.atMs > MEASURED_EVERY_MS;
        if (!known.isBusy && (beyondBytes >= 0 || isOld)) due.push({ watched, known, beyondBytes });
      }
      due.sort((one, other) => other.beyondBytes - one.beyondBytes);
      for (const { watched, known } of due.slice(0, AT_ONCE - this.#busy)) void this.#measure(watched, known);
    } catch (error) {
      this.#log.warn({ err: error }, "the free space of the disk is not known");
    } finally {
      this.#isLooking = false;
    }
  }

  async #measure(watched: Watched, known: Known): Promise<void> {
    known.isBusy = true;
    this.#busy++;
    try {
      // Before it is measured: what is written meanwhile is then counted again, not missed.
      const freeBytes = await this.#free();
      const atMs = performance.now();
      const usedBytes = await watched.measure();
      Object.assign(known, { freeBytes, atMs, usedBytes });
      if (usedBytes > watched.limitBytes && this.#known.has(watched)) {
        this.remove(watched);
        await watched.end(usedBytes);
      }
    } catch (error) {
      // It may have ended.
      Object.assign(known, { freeBytes: NaN, atMs: performance.now(), usedBytes: 0 });
      const fields = { sandbox: watched.id, reason: messageOf(error) };
      if (this.#known.has(watched)) this.#log.warn(fields, "the disk of a sandbox could not be measured");
    } finally {
      this.#busy--;
      known.isBusy = false;
    }
  }

  async #free(): Promise<number> {
    const { bfree, bsize } = await statfs(this.#directory);
    return bfree * bsize;
  }
}
