import { isIPv4 } from "node:net";
import { type NetworkLeases, SandboxError } from "@coppice/core";
import type { SandboxId } from "@coppice/core/backend";

/** The host has the first address of a range; the others below this one are left to it. */
const FIRST = 10;
/** Addresses that are offered to the ledger at one time. */
const AT_ONCE = 64;

/** An address that one sandbox has. */
export interface Lease {
  readonly address: string;
  /** Its place in the range, which everything else of it is numbered by. */
  readonly number: number;
}

export interface AddressPoolOptions {
  /** IPv4 in CIDR notation. */
  readonly range: string;
  /** Say who has which address: nothing of that is kept here. */
  readonly leases: NetworkLeases;
}

/**
 * The addresses of a range, as they are leased. One that was given back comes last: what is still under way to its
 * sandbox does not find the next one.
 */
export class AddressPool {
  readonly prefixLength: number;
  readonly #leases: NetworkLeases;
  readonly #start: number;
  readonly #end: number;
  /** What nobody is to have until something was done of it. */
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

  /** Address of the host: the gateway. */
  get gateway(): string {
    return addressOf(this.#start + 1);
  }

  /** @throws SandboxError resource_exhausted, unavailable */
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
    throw new SandboxError("resource_exhausted", "all addresses for sandboxes are in use");
  }

  /** Address of a sandbox; undefined when it has none of this range. */
  async find(holder: SandboxId): Promise<Lease | undefined> {
    const held = await this.#leases.heldBy(holder);
    return held.map((address) => this.#leaseOf(address)).find((lease) => lease !== undefined);
  }

  /**
   * Has the leases say what the host shows: that a sandbox has an address. Whoever else was to have it here has not.
   * @throws SandboxError already_exists when it is somebody's of another network.
   */
  async reclaim(holder: SandboxId, address: string): Promise<void> {
    const held = await this.#leases.heldBy(holder);
    if (held.includes(address)) return;
    const other = (await this.#leases.all()).find((lease) => lease.address === address);
    if (other !== undefined) await this.#leases.release(other.holder);
    await this.#leases.release(holder);
    if ((await this.#leases.take(holder, [address])) !== undefined) return;
    throw new SandboxError("already_exists", `address ${address} is leased in another network`);
  }

  /** The place of an address in the range; undefined for one that no sandbox can have. */
  numberOf(address: string): number | undefined {
    return this.#leaseOf(address)?.number;
  }

  /** The address at a place of the range; undefined for one that no sandbox can have. */
  addressAt(number: number): string | undefined {
    return Number.isInteger(number) && number >= FIRST && number < this.#end
      ? addressOf(this.#start + number)
      : undefined;
  }

  /** Does something of a number that nobody has, and lets nobody have it meanwhile. Nothing, where somebody has it. */
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
