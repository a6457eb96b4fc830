import type { ConformanceCase } from "@coppice/core/testing";
import { hostTitle, NETWORK_HOSTS } from "../../harness/freebsd/network-hosts.js";
import { isAboutNetworks, testJails } from "../../harness/freebsd/test-jails.js";

/**
 * A jail in the stack of the host differs in what it sees and reaches of others, and in how it begins, goes on and ends.
 * Its files, programs, images and limits are as in conformance.test.ts. There, too, links are swapped for five seconds:
 * the daemon of zfs-fuse does not always survive so many renames.
 */
function isAboutStack(each: ConformanceCase): boolean {
  if (each.name.includes("links are swapped for five seconds")) return false;
  const { group, needs = [] } = each;
  const isOther = needs.some((need) => need === "images" || (typeof need === "object" && "limit" in need));
  const isMeant = group === "facets" || group === "isolation";
  return isAboutNetworks(each) || group === "provision" || (isMeant && !isOther);
}

for (const host of NETWORK_HOSTS.filter(({ networkKind }) => networkKind === "alias"))
  testJails(
    `jail-freebsd with ${hostTitle(host)}`,
    host,
    host.release === 14 ? isAboutStack : isAboutNetworks,
  );
