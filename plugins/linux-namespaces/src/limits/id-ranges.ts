import { SandboxError } from "@coppice/core";

/** How many ids a sandbox has: up to the accounts that programs expect, `nobody` among them. */
export const IDS_OF_SANDBOX = 65_536;

/** Gives each sandbox that runs user and group ids of the host that nobody else has. */
export class IdRanges {
  readonly #first: number;
  readonly #slots: number;
  readonly #start: number;
  readonly #used = new Set<number>();

  /** @param start any number: where the search begins, so that servers of one host seldom meet. */
  constructor({ first, count }: { readonly first: number; readonly count: number }, start: number) {
    this.#first = first;
    this.#slots = Math.floor(count / IDS_OF_SANDBOX);
    this.#start = start;
  }

  /** @returns the first of its ids. @throws SandboxError resource_exhausted */
  take(): number {
    for (let tried = 0; tried < this.#slots; tried++) {
      const first = this.#first + ((this.#start + tried) % this.#slots) * IDS_OF_SANDBOX;
      if (this.#used.has(first)) continue;
      this.#used.add(first);
      return first;
    }
    throw new SandboxError("ids_exhausted", "all ids of linux-namespaces.ids are in use");
  }

  /** Says that what an earlier server made has them. */
  retake(first: number): void {
    this.#used.add(first);
  }

  /** Once all processes of the sandbox have ended. */
  release(first: number): void {
    this.#used.delete(first);
  }
}
