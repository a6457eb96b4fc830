import type { ConformanceCase } from "@coppice/core/testing";
import { hostTitle, NETWORK_HOSTS } from "../../harness/freebsd/network-hosts.js";
import { testJails } from "../../harness/freebsd/test-jails.js";

/** The other cases do not depend on the kind of network. */
const ABOUT_NETWORKS = /internet access|sockets of other sandboxes/;

function isAboutNetworks({ group, name, needs = [] }: ConformanceCase): boolean {
  return group === "network" || needs.includes("networking") || ABOUT_NETWORKS.test(name);
}

/** The other cases do not depend on the program that starts commands. */
function isAboutCommands({ group }: ConformanceCase): boolean {
  return group === "process" || group === "terminal";
}

/** Without those of a guest, whom nothing keeps from the processes of this host. */
function isAboutProcesses(each: ConformanceCase): boolean {
  const { group, needs = [] } = each;
  return (
    isAboutCommands(each) || group === "provision" || needs.includes("pausing") || needs.includes("stopping")
  );
}

// The first one runs all cases: conformance.test.ts.
for (const options of NETWORK_HOSTS.slice(1)) {
  testJails(`jail-freebsd with ${hostTitle(options)}`, options, isAboutNetworks);
}
testJails("jail-freebsd in the one PID space of its host", { hasOnePidSpace: true }, isAboutProcesses);
testJails("jail-freebsd by its agents alone", { commands: "agent" }, isAboutCommands);
