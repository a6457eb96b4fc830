import type { IncomingHttpHeaders } from "node:http";
import { type BlockList, isIP } from "node:net";
import { addressList } from "../../sandbox/contract/egress-rules.js";

/** Finds the address of a request's client behind the operator's trusted proxies. */
export class ClientAddresses {
  readonly #trusted: BlockList;

  /** @param trustedProxies addresses and CIDR ranges; `X-Forwarded-For` of other peers is ignored. */
  constructor(trustedProxies: readonly string[]) {
    this.#trusted = addressList(trustedProxies);
  }

  /**
   * The peer's address, or behind trusted proxies the last address in `X-Forwarded-For` that is no trusted proxy:
   * entries to the left of it were written by the client.
   */
  of(peer: string | undefined, headers: IncomingHttpHeaders): string {
    let address = plain(peer ?? "");
    const forwarded = String(headers["x-forwarded-for"] ?? "").split(",");
    while (this.#isTrusted(address)) {
      const before = plain(forwarded.pop()?.trim() ?? "");
      if (isIP(before) === 0) break;
      address = before;
    }
    return address;
  }

  /** The client's protocol: the word of a trusted proxy, else that of the connection. */
  protocolOf(
    socket: { readonly remoteAddress?: string | undefined; readonly encrypted?: boolean },
    headers: IncomingHttpHeaders,
  ): "http" | "https" {
    if (socket.encrypted === true) return "https";
    const said = String(headers["x-forwarded-proto"] ?? "")
      .split(",")
      .at(-1)
      ?.trim();
    return said === "https" && this.#isTrusted(plain(socket.remoteAddress ?? "")) ? "https" : "http";
  }

  /** Key for counting a connection; undefined for a trusted proxy's, which many clients share. */
  countedFor(peer: string | undefined): string | undefined {
    const address = plain(peer ?? "");
    return this.#isTrusted(address) ? undefined : clientOf(address);
  }

  #isTrusted(address: string): boolean {
    return isIP(address) !== 0 && this.#trusted.check(address, familyOf(address));
  }
}

/** A listener on `::` sees IPv4 clients as `::ffff:a.b.c.d`. */
function plain(address: string): string {
  return address.replace(/^::ffff:(?=\d+\.\d+\.\d+\.\d+$)/i, "");
}

function familyOf(address: string): "ipv4" | "ipv6" {
  return isIP(address) === 6 ? "ipv6" : "ipv4";
}

/** Key of a client address: an IPv6 client counts with its /64, in which it may choose addresses freely. */
export function clientOf(address: string): string {
  if (!address.includes(":")) return address;
  const [head = "", tail = ""] = address.split("::");
  const left = head === "" ? [] : head.split(":");
  const right = tail === "" ? [] : tail.split(":");
  const middle = address.includes("::")
    ? Array<string>(Math.max(8 - left.length - right.length, 0)).fill("0")
    : [];
  return [...left, ...middle, ...right].slice(0, 4).join(":");
}
