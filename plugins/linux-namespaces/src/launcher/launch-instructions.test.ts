import assert from "node:assert/strict";
import { it } from "node:test";
import { type LaunchedSandbox, launchInstructions } from "./launch-instructions.js";

it("a sandbox joins its control groups once its directories are made, and before a program of its own can run", () => {
  const sandbox = {
    facts: { id: "one", limits: { cpuCount: 1, diskMiB: 64, memoryMiB: 64, processes: 8 } },
    group: { joinFiles: ["/groups/one/tasks"] },
    hasLayers: false,
    paths: { layers: "/state/one/layers", mountPoint: "/state/one/root" },
    template: { binds: [], lowers: ["/lower"], overlays: [{ lowers: ["/other"], target: "/opt" }] },
    volumes: [{ id: "v", source: "/volume", target: "/data", readOnly: false, isWatched: false }],
  } as unknown as LaunchedSandbox;
  const words = launchInstructions(sandbox, {
    agent: "/agent",
    allowsSudo: false,
    nameservers: [],
    resourceLimits: {},
    users: undefined,
  });
  const joined = words.indexOf("join");
  // Their blocks would stay charged to the groups, which the kernel then keeps after their removal.
  for (const before of ["directory", "file", "overlay", "volume"])
    assert.ok(words.lastIndexOf(before) < joined, `${before} comes after it`);
  for (const after of ["own-groups", "enter", "capabilities"])
    assert.ok(words.indexOf(after) > joined, `${after} comes before it`);
});
