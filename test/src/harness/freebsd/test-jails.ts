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
} from "./freebsd-host.js";

export interface JailVariant extends FreebsdHostOptions {
  readonly commands?: JailSettings["commands"];
}

/** Runs those conformance cases that are meant, over FreeBSD's userland, where there can be a host. */
export function testJails(
  name: string,
  variant: JailVariant,
  isMeant: (each: ConformanceCase) => boolean = () => true,
): void {
  const reason = reasonWithoutFreebsdHost();
  if (reason !== undefined) it(`${name} keeps the promises of a backend`, { skip: reason }, () => undefined);
  else testConformance(name, () => openSubject(variant), { cases: conformanceCases.filter(isMeant) });
}

async function openSubject({ commands = "jexec", ...options }: JailVariant): Promise<ConformanceSubject> {
  const host = await openFreebsdHost({ isConnected: true, userland: "freebsd", ...options });
  const backend = host.backend({ commands });
  return {
    backend,
    // Connecting a sandbox takes nine programs: the cases that need it say so.
    specification: { allowInternetAccess: false },
    facets: [
      "pausing",
      "stopping",
      "resizing",
      "snapshots",
      "networking",
      "volumes",
      "images",
      "committing",
      "lost",
    ],
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
