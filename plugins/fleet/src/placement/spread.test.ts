import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { simulateFleet, type SimulationOptions } from "../testing/simulated-fleet.js";

const GIB = 1024;
const FLEET = { servers: 100, sandboxes: 10_000, seed: 20 };
const UNEQUAL: SimulationOptions["memoriesMiB"] = [32 * GIB, 32 * GIB, 64 * GIB, 512 * GIB];

describe("sandboxes of a hundred simulated servers", () => {
  const cases: Readonly<Record<string, Partial<SimulationOptions>>> = {
    "when clients ask any of them": {},
    "when clients ask the same three": { asked: 3 },
    "when they need little memory": { limitsMiB: [64] },
    "when they end by chance": { replaced: 20_000 },
    "when they end by chance, need unlike memory, and clients ask three": {
      replaced: 10_000,
      limitsMiB: [256, 512, 1024],
      asked: 3,
    },
    "of unequal size": { memoriesMiB: UNEQUAL },
    "of unequal size, when clients ask the same three": { memoriesMiB: UNEQUAL, asked: 3 },
  };
  for (const [when, options] of Object.entries(cases)) {
    it(`are within a tenth of even ${when}`, async () => {
      const { most, least } = await simulateFleet({ ...FLEET, ...options });
      assert.ok(most <= 1.1 && least >= 0.9, `the fullest server has ${most}, the emptiest ${least}`);
    });
  }

  it("stay where the client asks, as long as that server is about as full as others", async () => {
    assert.ok((await simulateFleet(FLEET)).kept > 0.5);
  });

  it("are found uneven where the offers of servers are not heard, or tell nothing", async () => {
    const deaf = await simulateFleet({ ...FLEET, asked: 3, heard: () => ({ refusal: "full" }) });
    assert.equal(deaf.least, 0);
    const blind = await simulateFleet({ ...FLEET, asked: 3, heard: () => ({ load: 0 }) });
    assert.ok(blind.most > 1.1 && blind.least < 0.9, `the fullest has ${blind.most}`);
  });
});
