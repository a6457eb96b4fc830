import { BlockList, isIP } from "node:net";

/** A list of addresses and CIDR ranges, IPv4 and IPv6. */
export function addressList(ranges: Iterable<string>): BlockList {
  const list = new BlockList();
  for (const range of ranges) {
    const [address = "", prefix] = range.split("/");
    const family = isIP(address) === 6 ? "ipv6" : "ipv4";
    list.addSubnet(address, Number(prefix ?? (family === "ipv6" ? 128 : 32)), family);
  }
  return list;
}
