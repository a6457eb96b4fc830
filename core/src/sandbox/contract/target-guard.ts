import { lookup as resolveName } from "node:dns";
import { type BlockList, isIP, type LookupFunction } from "node:net";
import { addressList } from "../../kernel/address-list.js";
import { NOT_PUBLIC_IPV4 } from "./egress-rules.js";

/** Addresses outside of the public internet: this host, its networks, and their IPv6 forms. */
const NOT_PUBLIC: readonly string[] = [
  ...NOT_PUBLIC_IPV4,
  "192.0.2.0/24",
  "192.88.99.0/24",
  "198.51.100.0/24",
  "203.0.113.0/24",
  "::/96",
  "::ffff:0:0:0/96",
  "64:ff9b::/96",
  "64:ff9b:1::/48",
  "100::/64",
  "2001::/23",
  "2001:db8::/32",
  "2002::/16",
  "3fff::/20",
  "fc00::/7",
  "fe80::/10",
  "fec0::/10",
  "ff00::/8",
];

/**
 * Restricts requests of the server whose targets clients choose to the public internet, and to addresses that the
 * operator allows.
 */
export class TargetGuard {
  readonly #notPublic = addressList(NOT_PUBLIC);
  readonly #allowed: BlockList;

  /** @param allowed private addresses and ranges that may be reached. */
  constructor(allowed: readonly string[]) {
    this.#allowed = addressList(allowed);
  }

  permits(address: string): boolean {
    const family = isIP(address) === 6 ? "ipv6" : "ipv4";
    return this.#allowed.check(address, family) || !this.#notPublic.check(address, family);
  }

  /** True for a URL's host that may be connected to; names are decided by `lookup`. */
  permitsHost(hostname: string): boolean {
    const address = hostname.replace(/^\[(.*)\]$/, "$1");
    return isIP(address) === 0 || this.permits(address);
  }

  /**
   * Resolves a name for a connection. The checked address is the one that is connected to, so that a name cannot change
   * in between. Fails when any address of the name is not permitted.
   */
  readonly lookup: LookupFunction = (hostname, options, callback) => {
    resolveName(hostname, { ...options, all: true }, (error, addresses) => {
      const [first] = addresses ?? [];
      // One answer for both, so that clients cannot probe for names of a private network.
      if (error !== null || first === undefined || !addresses.every(({ address }) => this.permits(address))) {
        callback(new Error("the host has no public address"), "", 0);
      } else if (options.all === true) callback(null, addresses);
      else callback(null, first.address, first.family);
    });
  };
}
