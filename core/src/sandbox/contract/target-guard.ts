import type { LookupAddress } from "node:dns";
import { type BlockList, isIP, type LookupFunction } from "node:net";
import { networkInterfaces } from "node:os";
import { callbackify } from "node:util";
import { addressList, NOT_PUBLIC_IPV4 } from "./egress-rules.js";
import { nameAddresses } from "./name-addresses.js";

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

/** Addresses of one name. */
const MOST_ADDRESSES = 256;

/**
 * Addresses of this host at the moment. A public one is as good as loopback: no firewall of the outer interface stands
 * before it.
 */
function ownAddresses(): BlockList {
  const found = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? []);
  return addressList(found.map(({ address }) => address));
}

/**
 * Restricts requests of the server whose targets clients choose to the public internet beside this host, and to
 * addresses that the operator allows.
 */
export class TargetGuard {
  readonly #notPublic = addressList(NOT_PUBLIC);
  readonly #allowed: BlockList;
  readonly #find: typeof nameAddresses;
  readonly #isSearched: boolean;

  /** @param allowed private addresses and ranges that may be reached. */
  constructor(allowed: readonly string[], find: typeof nameAddresses = nameAddresses) {
    this.#allowed = addressList(allowed);
    // Short names are those of a private network.
    this.#isSearched = allowed.length > 0;
    this.#find = find;
  }

  permits(address: string): boolean {
    return this.permitsAll([address]);
  }

  /** True for addresses of a name that may all be connected to; false for very many, each of which takes time. */
  permitsAll(addresses: readonly string[]): boolean {
    if (addresses.length > MOST_ADDRESSES) return false;
    // Once for all: on a host with many sandboxes the list takes milliseconds.
    const own = ownAddresses();
    return addresses.every((address) => {
      const family = isIP(address) === 6 ? "ipv6" : "ipv4";
      if (this.#allowed.check(address, family)) return true;
      return !this.#notPublic.check(address, family) && !own.check(address, family);
    });
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
    callbackify((name: string) => this.resolve(name))(hostname, (_error, addresses) => {
      const [first] = addresses;
      // One answer for both, so that clients cannot probe for names of a private network.
      if (first === undefined || !this.permitsAll(addresses.map(({ address }) => address))) {
        callback(new Error("the host has no public address"), "", 0);
      } else if (options.all === true) callback(null, addresses);
      else callback(null, first.address, first.family);
    });
  };

  /** Addresses of a name, permitted or not; none where it is not known. Never rejects. */
  async resolve(hostname: string): Promise<LookupAddress[]> {
    return this.#find(hostname, { isSearched: this.#isSearched }).catch(() => []);
  }
}

/** Codes of Node.js for a certificate that is not accepted. Whoever has one is a server for everybody. */
const OF_CERTIFICATES = /^(CERT_|UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO|ERR_TLS_CERT)/;

/**
 * Reason of a failed connection to a target that a client chose, for that client. A port that refuses, drops or speaks
 * something else gets one text, so that a client cannot scan ports by this server; a certificate's fault is told.
 */
export function failedConnection(error: unknown): string {
  const { code, message } = error as { readonly code?: unknown; readonly message?: string };
  if (typeof code !== "string") return message ?? "the connection failed";
  return OF_CERTIFICATES.test(code) ? `the connection failed (${code})` : "the connection failed";
}
