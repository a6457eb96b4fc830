import { isIPv4 } from "node:net";
import { SandboxError } from "@coppice/core";
import type { NetworkLeases, SandboxId } from "@coppice/core/backend";
import { REASONS } from "../reasons.js";

/** First number for sandboxes. The host has number 1; 2 to 9 stay unused. */
const FIRST = 10;
/** Addresses offered to the ledger in one call. */
const AT_ONCE = 64;

export interface Lease {
  readonly address: string;
  /** Position in the range, which names the sandbox's interfaces and anchors. */
  readonly number: number;
}

interface AddressPoolOptions {
  readonly range: string;
  /** The only record of leased addresses; the pool keeps none. */
  readonly leases: NetworkLeases;
}

/**
 * Leased addresses of a range. A released address is reused last, so that late packets do not reach another sandbox.
 */
export class AddressPool {
  readonly prefixLength: number;
  readonly #leases: NetworkLeases;
  readonly #start: number;
  readonly #end: number;
  /** Numbers that must not be leased for the moment. */
  readonly #withheld = new Set<number>();
  #next = FIRST;

  constructor({ leases, range }: AddressPoolOptions) {
    const [start = "", length = ""] = range.split("/");
    this.#leases = leases;
    this.prefixLength = Number(length);
    const size = 2 ** (32 - this.prefixLength);
    const first = numberOf(start);
    this.#start = first - (first % size);
    this.#end = size - 1;
  }

  get gateway(): string {
    return addressOf(this.#start + 1);
  }

  /** The last address, which is leased only when every other one was. */
  get last(): Lease {
    const number = this.#end - 1;
    return { address: addressOf(this.#start + number), number };
  }

  async take(holder: SandboxId): Promise<Lease> {
    const count = this.#end - FIRST;
    const first = this.#next - FIRST;
    for (let tried = 0; tried < count; tried += AT_ONCE) {
      const numbers = Array.from(
        { length: Math.min(AT_ONCE, count - tried) },
        (_, index) => FIRST + ((first + tried + index) % count),
      ).filter((number) => !this.#withheld.has(number));
      const addresses = numbers.map((number) => addressOf(this.#start + number));
      const lease = this.#leaseOf(await this.#leases.take(holder, addresses));
      if (lease === undefined) continue;
      this.#next = FIRST + ((lease.number - FIRST + 1) % count);
      return lease;
    }
    throw new SandboxError("addresses_exhausted", "all addresses for sandboxes are in use");
  }

  /** Address of a sandbox; undefined when it has none of this range. */
  async find(holder: SandboxId): Promise<Lease | undefined> {
    const held = await this.#leases.heldBy(holder);
    return held.map((address) => this.#leaseOf(address)).find((lease) => lease !== undefined);
  }

  /**
   * Makes the leases agree with the host, where a sandbox uses an address. Releases the lease of another holder in this
   * network.
   * @throws SandboxError already_exists when the address is leased in another network.
   */
  async reclaim(holder: SandboxId, address: string): Promise<void> {
    const held = await this.#leases.heldBy(holder);
    if (held.includes(address)) return;
    const other = (await this.#leases.all()).find((lease) => lease.address === address);
    if (other !== undefined) await this.#leases.release(other.holder);
    await this.#leases.release(holder);
    if ((await this.#leases.take(holder, [address])) !== undefined) return;
    throw new SandboxError(REASONS.address_leased, `address ${address} is leased in another network`);
  }

  /** Position of an address in the range; undefined for one that no sandbox can have. */
  numberOf(address: string): number | undefined {
    return this.#leaseOf(address)?.number;
  }

  /** Address at a position of the range; undefined for one that no sandbox can have. */
  addressAt(number: number): string | undefined {
    return Number.isInteger(number) && number >= FIRST && number < this.#end
      ? addressOf(this.#start + number)
      : undefined;
  }

  /** Runs an action if a number is free, and keeps it from being leased meanwhile. */
  async whileFree(number: number, run: () => Promise<void>): Promise<void> {
    const address = this.addressAt(number);
    this.#withheld.add(number);
    try {
      if (address === undefined || (await this.#leases.isFree(address))) await run();
    } finally {
      this.#withheld.delete(number);
    }
  }

  #leaseOf(address: string | undefined): Lease | undefined {
    if (address === undefined || !isIPv4(address)) return undefined;
    const number = numberOf(address) - this.#start;
    return this.addressAt(number) === undefined ? undefined : { address, number };
  }
}

function numberOf(address: string): number {
  return address.split(".").reduce((number, part) => number * 256 + Number(part), 0);
}

function addressOf(number: number): string {
  return [24, 16, 8, 0].map((shift) => (number >>> shift) & 255).join(".");
}
