import type { AddressLeases } from "../contract/address-leases.js";
import type { Ledger } from "./ledger.js";

export function ledgerLeases(ledger: Ledger): AddressLeases {
  return {
    of: (network) => ({
      all: async () => ledger.leases(network),
      heldBy: async (holder) => ledger.leasedTo({ network, holder }),
      isFree: async (address) => !(await ledger.isLeased(address)),
      take: async (holder, addresses) => ledger.lease({ network, holder, addresses }),
      release: async (holder) => ledger.endLeases({ network, holder }),
    }),
  };
}
