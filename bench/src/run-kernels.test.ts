import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { PROGRAM, run, testTables } from "./report/test-tables.js";

// Apart from the others, so that the limits of both hold on a busy machine: these start a kernel of Python dozens of times.
describe("the benchmarks of kernels and of sandboxes that have one", { timeout: 240_000 }, () => {
  testTables(["create", "pool", "run-code", "code-output", "kernel-memory"]);

  it("of many kernels tells what each of them costs", async () => {
    const { stdout } = await run(process.execPath, [PROGRAM, "many-kernels", "--seconds", "0.03"]);
    const [title = "", alive = "", ...rows] = stdout.trim().split("\n");
    assert.match(title, /^many-kernels: 3 kernels in 1 sandboxes, /);
    assert.equal(alive, "  alive, and answered: 3; ended for want of a heartbeat: 0");
    assert.equal(rows.length, 4);
    for (const row of rows) assert.match(row, /^ {2}\w.*: .*\d+(\.\d+)? (MiB|ms|descriptors)/);
  });
});
