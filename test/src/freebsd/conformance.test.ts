import { it } from "node:test";
import {
  conformanceCases,
  type ConformanceCase,
  type ConformanceSubject,
  testConformance,
} from "@coppice/core/testing";
import type { JailSettings } from "@coppice/plugin-jail-freebsd";
import {
  type FreebsdHostOptions,
  openFreebsdHost,
  OUTSIDE,
  reasonWithoutFreebsdHost,
} from "../harness/freebsd/freebsd-host.js";

const reason = reasonWithoutFreebsdHost();
/** The other cases do not depend on the kind of network. */
const ABOUT_NETWORKS = /internet access|sockets of other sandboxes/;

function isAboutNetworks({ group, name, needs = [] }: ConformanceCase): boolean {
  return group === "network" || needs.includes("networking") || ABOUT_NETWORKS.test(name);
}

/** The other cases do not depend on the program that starts commands. */
function isAboutCommands({ group }: ConformanceCase): boolean {
  return group === "process" || group === "terminal";
}

interface Variant {
  readonly networkKind: FreebsdHostOptions["networkKind"];
  readonly commands: JailSettings["commands"];
}

async function openSubject({ commands, networkKind }: Variant): Promise<ConformanceSubject> {
  // Both generations of pfctl(8).
  const release = networkKind === "alias" ? 14 : 15;
  const host = await openFreebsdHost({ isConnected: true, networkKind, release });
  const backend = host.backend({ commands });
  return {
    backend,
    // Connecting a sandbox takes nine programs: the cases that need it say so.
    specification: { allowInternetAccess: false },
    facets: ["pausing", "stopping", "resizing", "snapshots", "networking", "volumes", "lost"],
    outside: OUTSIDE,
    abilities: ["terminals", "watching", "accounts"],
    limits: ["diskMiB", ...host.limits],
    stateDirectory: host.settings.directory,
    lose: async ({ id }) => {
      await host.run(host.settings.programs.jail, "-q", "-R", `e2b-${id}`);
    },
    leaks: () => host.leaks(),
    async [Symbol.asyncDispose]() {
      await backend.close();
      await host[Symbol.asyncDispose]();
    },
  };
}

if (reason !== undefined) {
  it("jail-freebsd keeps the promises of a backend", { skip: reason }, () => undefined);
} else {
  const testVariant = (name: string, variant: Variant, isMeant: (each: ConformanceCase) => boolean) =>
    testConformance(name, () => openSubject(variant), {
      cases: conformanceCases.filter((each) => process.env["COPPICE_TEST_CASES"] === "all" || isMeant(each)),
    });
  const usual = { networkKind: "vnet", commands: "jexec" } as const;
  testVariant("jail-freebsd over zfs-fuse and stand-ins for jails", usual, () => true);
  testVariant("jail-freebsd in the stack of the host", { ...usual, networkKind: "alias" }, isAboutNetworks);
  testVariant("jail-freebsd by its agents alone", { ...usual, commands: "agent" }, isAboutCommands);
}
