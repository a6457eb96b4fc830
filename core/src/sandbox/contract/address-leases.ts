import { createToken } from "../../kernel/token.js";
import type { SandboxId } from "./backend.js";

export interface AddressLease {
  /** In the backend's spelling: one address is always written the same way. */
  readonly address: string;
  /** The sandbox that has it, also before any client knows of that sandbox. */
  readonly holder: SandboxId;
}

/**
 * The leased addresses of one network. They are kept in the server's ledger and outlive the server; every method
 * rejects before the ledger is open, which is after the backends' `check`.
 */
export interface NetworkLeases {
  all(): Promise<readonly AddressLease[]>;
  heldBy(holder: SandboxId): Promise<readonly string[]>;
  /** True when no address is leased, in any network. */
  isFree(address: string): Promise<boolean>;
  /**
   * Leases, atomically, the first of some addresses that is free in every network.
   * @returns undefined when all are taken. @throws SandboxError unavailable when it cannot be written.
   */
  take(holder: SandboxId, addresses: readonly string[]): Promise<string | undefined>;
  /**
   * Ends all leases of a holder in this network. Call it last when a sandbox is removed: another one may get the
   * address at once. A holder without leases is fine. @throws SandboxError unavailable when the ledger cannot be
   * written.
   */
  release(holder: SandboxId): Promise<void>;
}

/** The addresses of this server's sandboxes. A backend whose sandboxes have addresses leases them here. */
export interface AddressLeases {
  /** The leases of a network, whose name no other installation and no other backend uses. */
  of(network: string): NetworkLeases;
}

export const AddressLeases = createToken<AddressLeases>("address-leases");
