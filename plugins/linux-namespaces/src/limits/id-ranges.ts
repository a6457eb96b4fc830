import { SandboxError } from "@coppice/core";
import { REASONS } from "../reasons.js";

/** Ids of a sandbox, including the accounts that programs expect, such as `nobody`. */
export const IDS_OF_SANDBOX = 65_536;

/** Gives each running sandbox an exclusive range of user and group ids on the host. */
export class IdRanges {
  readonly #first: number;
  readonly #slots: number;
  readonly #start: number;
  readonly #used = new Set<number>();

  /** @param start random number where the search begins, so that servers of one host rarely collide. */
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
    throw new SandboxError(REASONS.ids_exhausted, "all ids of linux-namespaces.ids are in use");
  }

  /** Marks a range of an earlier server's sandbox as used. */
  reclaim(first: number): void {
    this.#used.add(first);
  }

  /** Call this once all processes of the sandbox have ended. */
  release(first: number): void {
    this.#used.delete(first);
  }
}
