import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { missingForNamespaces } from "@coppice/test/harness/server/on-each-backend.js";
import { soak } from "./soak.js";

const DURATION_MS = 7_000;

describe("a server under mixed load whose clients come and go", { timeout: 180_000 }, () => {
  for (const [backend, skip] of [
    ["linux-namespaces", missingForNamespaces()],
    ["local-process", process.platform === "linux" ? false : "it looks into /proc"],
  ] as const) {
    it(
      `holds nothing afterwards, and all that was done is accounted for, on ${backend}`,
      { skip },
      async () => {
        const seed = Number(process.env["COPPICE_FUZZ_SEED"] ?? Date.now() % 1_000_000);
        const { faults, done } = await soak({ backend, durationMs: DURATION_MS, clients: 3, seed });
        assert.deepEqual(faults, [], `with COPPICE_FUZZ_SEED=${seed}`);
        for (const what of ["sandboxes", "commands", "executions", "files", "disconnects"] as const)
          assert.ok(done[what] > 0, `no ${what} at all`);
      },
    );
  }
});
