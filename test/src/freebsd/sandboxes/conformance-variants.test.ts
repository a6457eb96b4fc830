import type { ConformanceCase } from "@coppice/conformance";
import { hostTitle, NETWORK_HOSTS, UNCONNECTED_HOST } from "../../harness/freebsd/network-hosts.js";
import { isAboutNetworks, testJails } from "../../harness/freebsd/test-jails.js";

/** A sandbox without a network differs from a connected one in what it can be asked for, and in how it begins and ends. */
function isAboutNone(each: ConformanceCase): boolean {
  const isFacet = each.group === "facets" && !each.needs?.includes("images");
  return isAboutNetworks(each) || each.group === "provision" || isFacet;
}

testJails(`jail-freebsd with ${hostTitle(NETWORK_HOSTS[1])}`, NETWORK_HOSTS[1], isAboutNetworks);
testJails(`jail-freebsd with ${hostTitle(UNCONNECTED_HOST)}`, UNCONNECTED_HOST, isAboutNone);
