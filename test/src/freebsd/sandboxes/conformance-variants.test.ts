import type { ConformanceCase } from "@coppice/core/testing";
import { hostTitle, NETWORK_HOSTS, UNCONNECTED_HOST } from "../../harness/freebsd/network-hosts.js";
import { isAboutNetworks, testJails } from "../../harness/freebsd/test-jails.js";

/** The other cases do not depend on the program that starts commands. */
function isAboutCommands({ group }: ConformanceCase): boolean {
  return group === "process" || group === "terminal";
}

/** A sandbox without a network differs from a connected one in what it can be asked for, and in how it begins and ends. */
function isAboutNone(each: ConformanceCase): boolean {
  const isFacet = each.group === "facets" && !each.needs?.includes("images");
  return isAboutNetworks(each) || each.group === "provision" || isFacet;
}

testJails(`jail-freebsd with ${hostTitle(NETWORK_HOSTS[1])}`, NETWORK_HOSTS[1], isAboutNetworks);
testJails(`jail-freebsd with ${hostTitle(UNCONNECTED_HOST)}`, UNCONNECTED_HOST, isAboutNone);
testJails("jail-freebsd by its agents alone", { commands: "agent" }, isAboutCommands);
