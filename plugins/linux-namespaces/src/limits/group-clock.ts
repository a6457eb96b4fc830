import { dirname, join } from "node:path";
import { readAtOnce } from "@coppice/core/backend";

/** Time for which one reading of the group above serves the clocks of all groups below it. */
const SHARED_MS = 5;

interface Reading {
  readonly atMs: number;
  readonly text: string | undefined;
}

/** By directory, the last reading of the groups above those of sandboxes: there is one, or one for each installation of a test. */
const above = new Map<string, Reading>();

/**
 * Processor time that the processes of a control group have used, as the kernel's text: equal texts mean that none has
 * run in between. Undefined where it is unknown.
 */
export class GroupClock {
  readonly #directory: string | undefined;
  readonly #version: 1 | 2;
  /** The text that is true as long as the group above has its own. */
  #last: { readonly above: string; readonly text: string | undefined } | undefined;

  /** @param directory of the group by version 2, or by the controller `cpuacct` of version 1. */
  constructor(directory: string | undefined, version: 1 | 2) {
    this.#directory = directory;
    this.#version = version;
  }

  now(): string | undefined {
    return this.#read(this.#directory);
  }

  /**
   * The text of now, or of a few milliseconds ago. While no process of any group beside it runs, one reading is enough for
   * all of them.
   */
  recent(): string | undefined {
    if (this.#directory === undefined) return undefined;
    // Before the group's own: what runs in between makes the next reading another one.
    const text = this.#readAbove(dirname(this.#directory));
    if (text === undefined) return this.now();
    if (text !== this.#last?.above) this.#last = { above: text, text: this.now() };
    return this.#last.text;
  }

  #readAbove(directory: string): string | undefined {
    const atMs = performance.now();
    let reading = above.get(directory);
    if (reading === undefined || atMs - reading.atMs >= SHARED_MS) {
      reading = { atMs, text: this.#read(directory) };
      above.set(directory, reading);
    }
    return reading.text;
  }

  #read(directory: string | undefined): string | undefined {
    if (directory === undefined) return undefined;
    if (this.#version === 1) return readAtOnce(join(directory, "cpuacct.usage"));
    return readAtOnce(join(directory, "cpu.stat"))?.split("\n", 1)[0];
  }
}
