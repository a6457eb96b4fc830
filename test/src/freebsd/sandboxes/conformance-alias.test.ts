import { hostTitle, NETWORK_HOSTS } from "../../harness/freebsd/network-hosts.js";
import { isAboutNetworks, testJails } from "../../harness/freebsd/test-jails.js";

// With conformance.test.ts that is each kind of network, and each release of pfctl(8), with all cases.
for (const host of NETWORK_HOSTS.filter(({ networkKind }) => networkKind === "alias")) {
  const cases = host.release === 14 ? undefined : isAboutNetworks;
  testJails(`jail-freebsd with ${hostTitle(host)}`, host, cases);
}
