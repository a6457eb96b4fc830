// The conformance suite for an ordinary user, run as one by `ordinary-user.test.ts`.
import { testConformance } from "@coppice/core/testing";
import { openInternet, reasonWithoutEgress } from "./open-internet.js";
import { hasAccounts, wholeLimits, isOnDisk, openTestBackend } from "./test-backend.js";

testConformance("linux-namespaces without root", async () => {
  const hasInternet = reasonWithoutEgress() === undefined;
  const internet = hasInternet ? await openInternet() : undefined;
  const opened = await openTestBackend(internet && { egress: "nat", egressRange: internet.egressRange });
  const held = await wholeLimits(opened.backend);
  const isKept = await isOnDisk(opened.backend);
  const limits = (["memoryMiB", "processes", "cpuCount"] as const).filter((name) => held.has(name));
  return {
    ...opened,
    facets: [
      "volumes",
      "lost",
      ...(internet === undefined ? [] : (["networking"] as const)),
      ...(isKept ? (["stopping"] as const) : []),
      ...((await hasAccounts(opened.backend)) ? (["images"] as const) : []),
      ...((await hasAccounts(opened.backend)) && isKept ? (["committing"] as const) : []),
      ...(held.has("pausing") ? (["pausing"] as const) : []),
      ...(held.has("memoryMiB") && held.has("cpuCount") ? (["resizing"] as const) : []),
    ],
    abilities: [
      "terminals",
      "watching",
      "metadata",
      ...((await hasAccounts(opened.backend)) ? (["accounts"] as const) : []),
    ],
    limits: [...limits, "diskMiB"],
    stateDirectory: opened.directory,
    ...(internet !== undefined && { outside: internet }),
  };
});
