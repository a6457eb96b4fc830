import type { ConformanceCase } from "@coppice/core/testing";
import { hostTitle, NETWORK_HOSTS } from "../../harness/freebsd/network-hosts.js";
import { isAboutNetworks, testJails } from "../../harness/freebsd/test-jails.js";

/** The daemon of zfs-fuse does not always survive five seconds of renames: once, in conformance.test.ts, is enough. */
function isCalm({ name }: ConformanceCase): boolean {
  return !name.includes("links are swapped for five seconds");
}

// With conformance.test.ts that is each kind of network, and each release of pfctl(8), with all cases.
for (const host of NETWORK_HOSTS.filter(({ networkKind }) => networkKind === "alias"))
  testJails(`jail-freebsd with ${hostTitle(host)}`, host, host.release === 14 ? isCalm : isAboutNetworks);
