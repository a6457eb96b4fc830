import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { reasonWithoutEtcd } from "@coppice/plugin-fleet/testing";
import type { RoundsOptions, RoundsReport } from "./rounds/rounds.js";
import { reasonWithoutIsolation, runIsolated } from "@coppice/test/harness/host/isolated.js";
import { missingForNamespaces } from "@coppice/test/harness/server/on-each-backend.js";

const ROUNDS = import.meta.resolve("./run-isolated-rounds.js");
/** Longer than that of long runs: machines of CI do other things meanwhile. */
const LEASE_MS = 3000;
/** What only a server without a fence does. */
const PARTED = "a server and etcd are parted until its loss was told";

const run = (options: Omit<RoundsOptions, "leaseMs">): Promise<RoundsReport> =>
  runIsolated(ROUNDS, { leaseMs: LEASE_MS, ...options });

describe(
  "a fleet of three servers and three members of etcd under load",
  { skip: reasonWithoutEtcd() || reasonWithoutIsolation(), timeout: 300_000 },
  () => {
    for (const [backend, rounds, skip] of [
      ["local-process", 5, false],
      ["linux-namespaces", 3, missingForNamespaces()],
    ] as const)
      it(`survives ${rounds} faults with ${backend}, and nothing is left`, { skip }, async () => {
        const seed = Number(process.env["COPPICE_FUZZ_SEED"] ?? Date.now() % 1_000_000);
        const { rounds: done, left } = await run({ backend, rounds, seed });
        for (const { seed: own, fault, violations } of done)
          assert.deepEqual(violations, [], `${fault}, with COPPICE_FUZZ_SEED=${own}`);
        assert.deepEqual(left, [], `with COPPICE_FUZZ_SEED=${seed}`);
        assert.equal(done.length, rounds);
      });

    it("is found out when a server goes on serving what the fleet has given up", async () => {
      const { rounds } = await run({
        backend: "local-process",
        // The first one that finds it is the last.
        rounds: 5,
        seed: 1,
        fault: PARTED,
        isUnfenced: true,
      });
      assert.match(rounds.at(-1)?.violations.join("\n") ?? "", /no order explains/);
    });
  },
);
