import assert from "node:assert/strict";
import { it } from "node:test";
import { limitsOf, limitsText } from "../sandbox-root.js";

it("limits are read as they were stored, and are the defaults where they were damaged", () => {
  const defaults = { cpuCount: 2, memoryMiB: 512, diskMiB: 1024, processes: 100 };
  const limits = { cpuCount: 0.5, memoryMiB: 64, diskMiB: 256, processes: 20 };
  assert.deepEqual(limitsOf(limitsText(limits), defaults), limits);
  assert.deepEqual(limitsOf("0.5:many:-1", defaults), { ...defaults, cpuCount: 0.5 });
  for (const damaged of [undefined, "", "::", "NaN:Infinity:0:x"])
    assert.deepEqual(limitsOf(damaged, defaults), defaults, damaged);
});
