import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { reasonWithoutEtcd } from "@coppice/plugin-fleet/testing";
import { reasonWithoutIsolation, runIsolated } from "../../harness/host/isolated.js";
import type { ThreeHosts } from "./three-hosts.js";

describe(
  "docs/three-hosts.md",
  { skip: reasonWithoutEtcd() || reasonWithoutIsolation(), timeout: 120_000 },
  () => {
    it("leads to a fleet, with config/fleet.yaml as it is", async () => {
      const told = await runIsolated<ThreeHosts>(import.meta.resolve("./three-hosts.js"), {});
      assert.equal(told.health.match(/"health":"true"/g)?.length, 3, told.health);
      // What curl makes of the alert depends on when it comes.
      assert.match(told.refusal, /^curl: \(\d+\)/);
      assert.match(told.doctor, / 0 FAIL$/m);
      for (const member of ["1", "2", "3"])
        assert.match(told.doctor, new RegExp(`etcd [\\d.]+ at https://10.0.0.${member}:2379`));
      for (const server of ["a", "b"])
        assert.match(told.doctor, new RegExp(`ok .* server '${server}' at https`));
      assert.deepEqual(
        told.said,
        Array.from({ length: 3 }, () => `${told.sandboxId}\n`),
      );
      for (const [lines, sandboxes] of [
        [told.status.during, 1],
        [told.status.after, 0],
      ] as const) {
        const rows = lines.map((line) => line.split("\t"));
        assert.deepEqual(
          rows.map(([name, state]) => [name, state]),
          [
            ["a", "member"],
            ["b", "member"],
            ["c", "member"],
          ],
        );
        assert.equal(
          rows.reduce((sum, row) => sum + Number(row[2]), 0),
          sandboxes,
        );
      }
    });
  },
);
