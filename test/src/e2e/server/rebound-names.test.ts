import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { reasonWithoutIsolation, runIsolated } from "../../harness/host/isolated.js";
import type { ReboundNames } from "./rebound-names.js";

/** Attempts of a delivery. */
const ATTEMPTS = 3;

describe(
  "a server whose clients name hosts that are public first, and private at the next look-up",
  { skip: reasonWithoutIsolation() || missingForNamespaces(), timeout: 120_000 },
  () => {
    it("connects to no address but the one that it has checked, for webhooks and for registries", async () => {
      const told = await runIsolated<ReboundNames>(import.meta.resolve("./rebound-names.js"), {});
      const { webhooks, registries, reached, served, rounds, reasons } = told;
      assert.deepEqual(reached, []);
      assert.ok(webhooks.length > 0 && registries.length > 0);
      for (const name of webhooks)
        // Each attempt has looked it up once, and the first one alone has come anywhere.
        assert.deepEqual([name, rounds[name], served[name]], [name, ATTEMPTS, 1]);
      // What it redirects to is not asked for.
      assert.equal(served["redirect"], ATTEMPTS);
      for (const name of registries) {
        assert.equal(served[name], 1, name);
        assert.match(reasons[name] ?? "", /: '[\w.-]+' has no public address that this server can find/);
      }
    });
  },
);
