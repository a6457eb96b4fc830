import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { startFullServer } from "../../harness/server/start-full-server.js";

/** With the same variable each file of `e2e/contract` and `e2e/sdk` does what these do. */
const SUITES = [
  "contract/reasons",
  "contract/tenancy",
  "sdk/sdk-snapshots",
  "sdk/sdk-templates",
  "sdk/sdk-volumes",
];

process.env["COPPICE_TEST_FLEET_OF_ONE"] = "sqlite";

describe("suites of a single server, which pass with the only one of a fleet", () => {
  it("such a server they have", async () => {
    await using server = await startFullServer();
    assert.ok(server.urls["fleet"]);
  });
});
for (const name of SUITES) await import(`../${name}.test.js`);
