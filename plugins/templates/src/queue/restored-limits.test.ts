import assert from "node:assert/strict";
import { it } from "node:test";
import { templatesConfig } from "../templates-config.js";
import { restoredLimits } from "../model/pushed-template.js";

it("restores limits of a pushed template as far as sandboxes can have them here", () => {
  const settings = templatesConfig.parse({ maxCpuCount: 8, maxMemory: "4GiB", maxDisk: "10GiB" });
  const asked = { cpuCount: 2, memoryMiB: 1024, diskMiB: undefined };
  const restored = (limits: object) => {
    const warnings: string[] = [];
    const result = { context: { environment: {}, user: "user", workdir: undefined, limits } };
    const request = { limits: asked, restore: { limits: true } };
    const found = restoredLimits(request, result, settings, (line) => warnings.push(line));
    return [found, warnings.length];
  };
  const most = Number.MAX_SAFE_INTEGER;
  assert.deepEqual(restored({ cpuCount: most, memoryMiB: most, diskMiB: most }), [
    { cpuCount: 8, memoryMiB: 4096, diskMiB: 10_240 },
    3,
  ]);
  assert.deepEqual(restored({ cpuCount: 1, memoryMiB: 1 }), [
    { cpuCount: 1, memoryMiB: 128, diskMiB: undefined },
    0,
  ]);
  assert.deepEqual(restored({}), [asked, 0]);
});
