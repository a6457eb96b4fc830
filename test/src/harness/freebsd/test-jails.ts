import { it } from "node:test";
import {
  conformanceCases,
  type ConformanceCase,
  type ConformanceSubject,
  testConformance,
} from "@coppice/conformance";
import {
  type FreebsdHostOptions,
  openFreebsdHost,
  OUTSIDE,
  reasonWithoutFreebsdHost,
} from "./freebsd-host.js";
import { ALL_VARIANTS } from "./network-hosts.js";

/** The other cases do not depend on the kind of network: ALL_VARIANTS proves it. */
const ABOUT_NETWORKS = /internet access|sockets of other sandboxes/;

export function isAboutNetworks({ group, name, needs = [] }: ConformanceCase): boolean {
  return group === "network" || needs.includes("networking") || ABOUT_NETWORKS.test(name);
}

/**
 * Runs conformance cases over FreeBSD's userland, where there can be a host: those that are meant, and the others, too,
 * where all variants are asked for.
 */
export function testJails(
  name: string,
  variant: FreebsdHostOptions,
  isMeant: (each: ConformanceCase) => boolean = () => true,
): void {
  const reason = reasonWithoutFreebsdHost({ isMainCase: true });
  const cases = ALL_VARIANTS ? conformanceCases : conformanceCases.filter(isMeant);
  if (reason !== undefined) it(`${name} keeps the promises of a backend`, { skip: reason }, () => undefined);
  else testConformance(name, () => openSubject(variant), { cases });
}

async function openSubject(variant: FreebsdHostOptions): Promise<ConformanceSubject> {
  const { isConnected = true, ...options } = variant;
  const host = await openFreebsdHost({ isConnected, userland: "freebsd", ...options });
  const backend = host.backend();
  return {
    backend,
    // Connecting a sandbox takes nine programs: the cases that need it say so.
    specification: { allowInternetAccess: false },
    facets: [
      ...([
        "pausing",
        "stopping",
        "resizing",
        "snapshots",
        "volumes",
        "images",
        "committing",
        "lost",
      ] as const),
      ...(isConnected ? (["networking"] as const) : []),
    ],
    ...(isConnected && { outside: OUTSIDE }),
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
