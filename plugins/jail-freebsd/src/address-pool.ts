import { isIPv4 } from "node:net";
import { SandboxError } from "@coppice/core";

/** The host has the first address of a range; the others below this one are left to it. */
const FIRST = 10;

/** An address that one sandbox has. */
export interface Lease {
  readonly address: string;
  /** Its place in the range, which everything else of it is numbered by. */
  readonly number: number;
}

/**
 * The addresses of a range. Who has which is kept elsewhere; here is what is free. One that was given back
 * comes last: what is still under way to its sandbox does not find the next one.
 */
export class AddressPool {
  readonly prefixLength: number;
  readonly #start: number;
  readonly #end: number;
  readonly #used = new Set<number>();
  #next = FIRST;

  /** @param range IPv4 in CIDR notation. */
  constructor(range: string) {
    const [start = "", length = ""] = range.split("/");
    this.prefixLength = Number(length);
    const size = 2 ** (32 - this.prefixLength);
    const first = numberOf(start);
    this.#start = first - (first % size);
    this.#end = size - 1;
  }

  /** What the host has: the way out. */
  get gateway(): string {
    return addressOf(this.#start + 1);
  }

  /** @throws SandboxError resource_exhausted */
  take(): Lease {
    const count = this.#end - FIRST;
    for (let tries = 0; tries < count; tries++) {
      const number = this.#next;
      this.#next = number + 1 < this.#end ? number + 1 : FIRST;
      if (this.#used.has(number)) continue;
      this.#used.add(number);
      return { address: addressOf(this.#start + number), number };
    }
    throw new SandboxError("resource_exhausted", "all addresses for sandboxes are in use");
  }

  /** Says that somebody has an address. Undefined for one that is not of this range. */
  retake(address: string): Lease | undefined {
    const number = this.numberOf(address);
    if (number === undefined) return undefined;
    this.#used.add(number);
    return { address, number };
  }

  release({ number }: Lease): void {
    this.#used.delete(number);
  }

  /** The place of an address in the range; undefined for one that no sandbox can have. */
  numberOf(address: string): number | undefined {
    const number = isIPv4(address) ? numberOf(address) - this.#start : -1;
    return number < FIRST || number >= this.#end ? undefined : number;
  }

  /** Does something of a number that nobody has, and lets nobody have it meanwhile. Nothing, where somebody has it. */
  async whileFree(number: number, run: () => Promise<void>): Promise<void> {
    if (this.#used.has(number)) return;
    this.#used.add(number);
    try {
      await run();
    } finally {
      this.#used.delete(number);
    }
  }
}

function numberOf(address: string): number {
  return address.split(".").reduce((number, part) => number * 256 + Number(part), 0);
}

function addressOf(number: number): string {
  return [24, 16, 8, 0].map((shift) => (number >>> shift) & 255).join(".");
}
