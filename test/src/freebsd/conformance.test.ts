import { test } from "node:test";
import type { Logger } from "@coppice/core";
import { testConformance } from "@coppice/core/testing";
import { JailBackend } from "@coppice/plugin-jail-freebsd";
import { openFreebsdHost, OUTSIDE, reasonWithoutFreebsdHost } from "../harness/freebsd-host.js";

const silent = { debug: () => undefined, info: () => undefined, warn: () => undefined } as unknown as Logger;
const reason = reasonWithoutFreebsdHost();

if (reason !== undefined) {
  void test("jail-freebsd keeps the promises of a backend", { skip: reason }, () => undefined);
} else {
  testConformance("jail-freebsd over zfs-fuse and stand-ins for jails", async () => {
    const host = await openFreebsdHost({ isConnected: true });
    const backend = new JailBackend(host.settings, silent);
    return {
      backend,
      // Connecting a sandbox takes nine programs: the cases that need it say so.
      specification: { allowInternetAccess: false },
      facets: ["pausing", "resizing", "snapshots", "networking", "volumes", "lost"],
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
  });
}
