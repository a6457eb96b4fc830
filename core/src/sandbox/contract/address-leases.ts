import { createToken } from "../../kernel/token.js";
import type { SandboxId } from "./backend.js";

/** An address that a sandbox has until it is given back. */
export interface AddressLease {
  /** As the backend wrote it: one address is always written the same way. */
  readonly address: string;
  /** The sandbox that has it, also before any client knows of that sandbox. */
  readonly holder: SandboxId;
}

/**
 * The addresses of one network, and the sandboxes that have them. All of it is in the server's ledger, so that it
 * outlives the server; every method rejects before the ledger is open, which is after the backends' `check`.
 */
export interface NetworkLeases {
  /** Every lease of this network. */
  all(): Promise<readonly AddressLease[]>;
  /** The addresses that a holder has in this network. */
  heldBy(holder: SandboxId): Promise<readonly string[]>;
  /** True when no address is leased, in any network. */
  isFree(address: string): Promise<boolean>;
  /**
   * Leases the first of some addresses that nobody has, in any network, whoever else asks at that moment.
   * @returns undefined when all of them are taken. @throws SandboxError unavailable when it cannot be written.
   */
  take(holder: SandboxId, addresses: readonly string[]): Promise<string | undefined>;
  /**
   * Gives back all that a holder has in this network: when nothing is left of the holder. One that has nothing is
   * fine. @throws SandboxError unavailable when it cannot be written.
   */
  release(holder: SandboxId): Promise<void>;
}

/** The addresses of this server's sandboxes. A backend whose sandboxes have addresses leases them here. */
export interface AddressLeases {
  /** Those of a network, by a name that no other installation and no other backend has. */
  of(network: string): NetworkLeases;
}

export const AddressLeases = createToken<AddressLeases>("address-leases");
