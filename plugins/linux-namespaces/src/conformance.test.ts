import { test } from "node:test";
import { testConformance } from "@coppice/core/testing";
import { openTestBackend, reasonToSkip } from "./testing/test-backend.js";

const reason = reasonToSkip();

if (reason !== undefined) {
  void test("linux-namespaces keeps the promises of a backend", { skip: reason }, () => undefined);
} else {
  testConformance("linux-namespaces", async () => {
    const opened = await openTestBackend();
    return {
      ...opened,
      facets: ["pausing", "resizing"],
      abilities: ["terminals", "watching", "metadata", "accounts"],
      limits: ["memoryMiB", "processes", "cpuCount", "diskMiB"],
      stateDirectory: opened.directory,
    };
  });
}
