import { ignoring } from "@coppice/core";
import type { Segment } from "./sandbox-log.js";
import { readIndex } from "./segment-file.js";
import type { SegmentIndex } from "./segment-index.js";

/** A cache of finished segments' indices, with the least recently used ones evicted. */
export class IndexCache {
  readonly #maxCommands: number;
  readonly #indices = new Map<Segment, SegmentIndex>();
  #commands = 0;

  /** @param maxCommands limit of the commands in all cached indices together. */
  constructor(maxCommands: number) {
    this.#maxCommands = maxCommands;
  }

  /** The index of a segment, undefined when its file is gone. @throws Error of the file system. */
  async load(segment: Segment): Promise<SegmentIndex | undefined> {
    // A segment that is being written has its index in memory.
    if (segment.index !== undefined) return segment.index;
    const kept = this.#indices.get(segment);
    if (kept !== undefined) {
      this.#indices.delete(segment);
      this.#indices.set(segment, kept);
      return kept;
    }
    if (segment.isGone) return undefined;
    segment.readers += 1;
    try {
      const index = await readIndex(segment);
      if (!segment.isGone) this.#keep(segment, index);
      return index;
    } catch (error) {
      return ignoring("ENOENT")(error);
    } finally {
      segment.readers -= 1;
    }
  }

  forget(segment: Segment): void {
    const index = this.#indices.get(segment);
    if (index === undefined) return;
    this.#indices.delete(segment);
    this.#commands -= costOf(index);
  }

  #keep(segment: Segment, index: SegmentIndex): void {
    // Another call may have read it at the same time.
    this.forget(segment);
    this.#indices.set(segment, index);
    this.#commands += costOf(index);
    for (const oldest of this.#indices.keys()) {
      if (this.#commands <= this.#maxCommands || oldest === segment) break;
      this.forget(oldest);
    }
  }
}

function costOf(index: SegmentIndex): number {
  return index.size + 1;
}
