import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { ROOT_VARIABLE, ProcessCensus } from "./host-processes.js";
import { UsageMeter } from "./usage-meter.js";

const MIB = 2 ** 20;

it("the memory, CPU time and files of a sandbox are measured", async (test) => {
  const root = await mkdtemp(join(tmpdir(), "coppice-usage-"));
  const script = "const held = Buffer.alloc(100 * 2 ** 20, 1); for (;;) held[0]++;";
  const busy = spawn(process.execPath, ["-e", script], {
    env: { PATH: process.env["PATH"], [ROOT_VARIABLE]: root },
    stdio: "ignore",
  });
  test.after(async () => {
    busy.kill("SIGKILL");
    await rm(root, { recursive: true });
  });
  await writeFile(join(root, "file"), Buffer.alloc(MIB));
  let changes = 0;
  const meter = new UsageMeter({
    root,
    diskScanEntries: 1_000,
    census: new ProcessCensus(),
    changes: () => changes,
  });
  meter.started();
  let [cpu, memory] = [0, 0];
  // ps(1) of some systems counts whole seconds.
  for (let time = 0; time < 300 && (cpu === 0 || memory < 100 * MIB); time++) {
    const stats = await meter.measure();
    [cpu, memory] = [Math.max(cpu, stats.cpuUsedPercent), stats.memoryUsedBytes];
    assert.equal(stats.diskUsedBytes, MIB);
    await sleep(100);
  }
  assert.ok(memory >= 100 * MIB, `${memory} bytes`);
  assert.ok(cpu > 0);
  assert.ok(meter.cpuSeconds > 0);
  const ended = once(busy, "exit");
  busy.kill("SIGKILL");
  await ended;
  // A look of a moment ago may still show it.
  for (let time = 0; time < 300 && (await meter.measure()).memoryUsedBytes > 0; time++) await sleep(100);
  await writeFile(join(root, "unseen"), Buffer.alloc(MIB));
  assert.equal((await meter.measure()).diskUsedBytes, MIB, "files were read though nothing ran");
  changes++;
  assert.equal((await meter.measure()).diskUsedBytes, 2 * MIB);
});
