import type { FullLimits, ResourceShortage } from "@coppice/core/backend";
import type { ControlGroup } from "./control-groups.js";

type Counted = "memory" | "processes";
type Counts = Readonly<Record<Counted, number>>;

const NONE: Counts = { memory: 0, processes: 0 };

/**
 * What a sandbox lacked, by the counters of its control group: processes that the kernel killed at the limit of memory,
 * and processes that it did not start. The kernel names none of them, so whoever fails looks whether one has grown.
 */
export class Shortages {
  readonly #group: () => ControlGroup;
  readonly #limits: () => FullLimits;
  #counts: Counts;
  #last: { readonly shortage: ResourceShortage; readonly atMs: number } | undefined;
  #onShortage: ((shortage: ResourceShortage) => void) | undefined;

  /** @param isNew false for a sandbox of an earlier server, which has told what was counted before. */
  constructor(options: {
    readonly group: () => ControlGroup;
    readonly limits: () => FullLimits;
    readonly isNew: boolean;
  }) {
    this.#group = options.group;
    this.#limits = options.limits;
    this.#counts = options.isNew ? NONE : options.group().shortageCounts();
  }

  /** Replaces who is called for each shortage that is found. */
  watch(onShortage: (shortage: ResourceShortage) => void): void {
    this.#onShortage = onShortage;
  }

  since(moment: number): ResourceShortage | undefined {
    this.look();
    return this.#last !== undefined && this.#last.atMs >= moment ? this.#last.shortage : undefined;
  }

  /** Looks at the counters. @returns true when processes were killed for lack of memory since the last look. */
  look(): boolean {
    const before = this.#counts;
    const now = this.#group().shortageCounts();
    this.#counts = now;
    if (now.processes > before.processes) this.#note("processes");
    if (now.memory > before.memory) this.#note("memory");
    return now.memory > before.memory;
  }

  /** The control group is another one, whose counters begin anew. */
  beginAnew(): void {
    this.#counts = NONE;
  }

  #note(resource: Counted): void {
    const { memoryMiB, processes } = this.#limits();
    const shortage = { resource, limit: resource === "memory" ? `${memoryMiB} MiB` : String(processes) };
    this.#last = { shortage, atMs: performance.now() };
    this.#onShortage?.(shortage);
  }
}
