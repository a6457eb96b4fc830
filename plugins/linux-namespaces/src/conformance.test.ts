import { it } from "node:test";
import { testConformance } from "@coppice/conformance";
import { endInit } from "./testing/end-init.js";
import { openInternet, reasonWithoutEgress } from "./testing/open-internet.js";
import { openTestBackend, reasonToSkip } from "./testing/test-backend.js";

const facts = {
  abilities: ["terminals", "watching", "metadata", "accounts"],
  limits: ["memoryMiB", "processes", "cpuCount", "diskMiB"],
  hasOwnUsers: process.getuid?.() === 0,
} as const;

const facets = [
  "pausing",
  "stopping",
  "resizing",
  "snapshots",
  "committing",
  "volumes",
  "images",
  "lost",
] as const;

const reason = reasonToSkip();

if (reason !== undefined) {
  it("linux-namespaces passes the conformance suite", { skip: reason }, () => undefined);
} else if (reasonWithoutEgress() !== undefined) {
  testConformance("linux-namespaces without egress", async () => {
    const opened = await openTestBackend();
    return {
      ...opened,
      ...facts,
      facets,
      stateDirectory: opened.directory,
      lose: (sandbox) => endInit(opened.directory, sandbox),
    };
  });
} else {
  testConformance("linux-namespaces", async () => {
    const internet = await openInternet();
    const opened = await openTestBackend({ egress: "nat", egressRange: internet.egressRange });
    return {
      ...opened,
      ...facts,
      facets: [...facets, "networking"],
      stateDirectory: opened.directory,
      lose: (sandbox) => endInit(opened.directory, sandbox),
      outside: internet,
      async [Symbol.asyncDispose]() {
        await opened[Symbol.asyncDispose]();
        await internet[Symbol.asyncDispose]();
      },
    };
  });
}
