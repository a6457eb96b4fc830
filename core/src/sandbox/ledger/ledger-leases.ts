import type { AddressLeases, NetworkLeases } from "../contract/address-leases.js";
import type { Ledger } from "./ledger.js";

export class LedgerLeases implements AddressLeases {
  readonly #ledgerInUse: () => Ledger;

  /** @param ledgerInUse called at each use: the ledger is chosen at the start. */
  constructor(ledgerInUse: () => Ledger) {
    this.#ledgerInUse = ledgerInUse;
  }

  of(network: string): NetworkLeases {
    return {
      all: async () => this.#ledgerInUse().leases(network),
      heldBy: async (holder) => this.#ledgerInUse().leasedTo({ network, holder }),
      isFree: async (address) => !(await this.#ledgerInUse().isLeased(address)),
      take: async (holder, addresses) => this.#ledgerInUse().lease({ network, holder, addresses }),
      release: async (holder) => this.#ledgerInUse().endLeases({ network, holder }),
    };
  }
}
