import assert from "node:assert/strict";
import { mkdtemp, rm, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, it } from "node:test";
import { Registry } from "prom-client";
import { Health } from "./health.js";
import { LAST_BACKUP, serverGauges } from "./server-gauges.js";

let dataDir: string;
before(async () => {
  dataDir = await mkdtemp(join(tmpdir(), "coppice-test-"));
});
after(() => rm(dataDir, { recursive: true }));

it("the gauges of a server have what is there, and no value for what is not", async () => {
  const registry = new Registry();
  const health = new Health();
  let isFull = false;
  health.add("disk", async () => {
    if (isFull) throw new Error("full");
  });
  const folders = new Map([
    ["dataDir", dataDir],
    ["other.directory", join(dataDir, "missing")],
  ]);
  serverGauges({ registry, dataDir, folders, health, certificates: () => [] });
  const value = async (name: string, label?: string): Promise<number | undefined> => {
    const metrics = await registry.getMetricsAsJSON();
    const { values = [] } = metrics.find((metric) => metric.name === name) ?? {};
    return values.find(({ labels }) => label === undefined || Object.values(labels).includes(label))?.value;
  };
  const size = (await value("coppice_host_disk_bytes", "dataDir")) ?? 0;
  const available = (await value("coppice_host_disk_available_bytes", "dataDir")) ?? 0;
  assert.ok(available > 0 && available < size, `${available} of ${size} bytes, by the first scrape`);
  assert.equal(await value("coppice_host_disk_bytes", "other.directory"), undefined);
  const memory = (await value("coppice_host_memory_available_bytes")) ?? 0;
  assert.ok(memory > 0 && memory < ((await value("coppice_host_memory_bytes")) ?? 0));
  assert.equal(await value("coppice_health_check", "disk"), 1);
  isFull = true;
  assert.equal(await value("coppice_health_check", "disk"), 0);
  assert.equal(await value("coppice_last_backup_timestamp_seconds"), 0);
  await writeFile(join(dataDir, LAST_BACKUP), "");
  await utimes(join(dataDir, LAST_BACKUP), 1_700_000_000, 1_700_000_000);
  assert.equal(await value("coppice_last_backup_timestamp_seconds"), 1_700_000_000);
});
