import type { AddressLeases, NetworkLeases } from "../contract/address-leases.js";
import type { Ledger } from "./ledger.js";

export class LedgerLeases implements AddressLeases {
  readonly #ledger: Ledger;

  constructor(ledger: Ledger) {
    this.#ledger = ledger;
  }

  of(network: string): NetworkLeases {
    return {
      all: async () => this.#ledger.leases(network),
      heldBy: async (holder) => this.#ledger.leasedTo({ network, holder }),
      isFree: async (address) => !(await this.#ledger.isLeased(address)),
      take: async (holder, addresses) => this.#ledger.lease({ network, holder, addresses }),
      release: async (holder) => this.#ledger.endLeases({ network, holder }),
    };
  }
}
