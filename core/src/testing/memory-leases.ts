import type { AddressLease, AddressLeases, NetworkLeases } from "../sandbox/contract/address-leases.js";

/** In-memory leases for tests of backends; share one instance between servers on one ledger. */
export class MemoryLeases implements AddressLeases {
  readonly #leases = new Map<string, AddressLease & { readonly network: string }>();

  /** All leases of all networks, in the order in which they were taken. */
  list(): readonly (AddressLease & { readonly network: string })[] {
    return [...this.#leases.values()];
  }

  of(network: string): NetworkLeases {
    const own = () => [...this.#leases.values()].filter((lease) => lease.network === network);
    return {
      all: async () => own().map(({ address, holder }) => ({ address, holder })),
      heldBy: async (holder) =>
        own()
          .filter((lease) => lease.holder === holder)
          .map(({ address }) => address),
      isFree: async (address) => !this.#leases.has(address),
      take: async (holder, addresses) => {
        const address = addresses.find((each) => !this.#leases.has(each));
        if (address !== undefined) this.#leases.set(address, { network, address, holder });
        return address;
      },
      release: async (holder) => {
        for (const lease of own()) if (lease.holder === holder) this.#leases.delete(lease.address);
      },
    };
  }
}
