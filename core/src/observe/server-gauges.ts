import { X509Certificate } from "node:crypto";
import { lstat, statfs } from "node:fs/promises";
import { availableParallelism, freemem, totalmem } from "node:os";
import { join } from "node:path";
import { Gauge, type Registry } from "prom-client";
import { systemClock } from "../kernel/clock.js";
import { fulfilledWithin } from "../kernel/time.js";
import type { Health } from "./health.js";

/** File of `dataDir` whose time is that of the last backup. */
export const LAST_BACKUP = "last-backup";

const DISK_TIMEOUT_MS = 1000;

export interface ServerGaugesOptions {
  readonly registry: Registry;
  readonly dataDir: string;
  /** By the setting that names it: folders whose file systems must not fill up. */
  readonly folders: ReadonlyMap<string, string>;
  readonly health: Pick<Health, "readiness">;
  /** Called at each scrape: certificates in use, as PEM, by listener. */
  readonly certificates: () => Iterable<readonly [listener: string, pem: string]>;
}

/** Registers what an operator is warned of before it stops the server: read at each scrape, and kept nowhere. */
export function serverGauges({
  registry,
  dataDir,
  folders,
  health,
  certificates,
}: ServerGaugesOptions): void {
  const registers = [registry];
  new Gauge({ name: "coppice_host_cpus", help: "CPUs that this server's process may use", registers }).set(
    availableParallelism(),
  );
  new Gauge({ name: "coppice_host_memory_bytes", help: "Memory of the host", registers }).set(totalmem());
  new Gauge({
    name: "coppice_host_memory_available_bytes",
    help: "Memory of the host that programs can still get",
    registers,
    collect() {
      this.set(freemem());
    },
  });
  const disk = (metric: { name: string; help: string }): Gauge<"setting"> =>
    new Gauge({ ...metric, labelNames: ["setting"], registers, collect: look });
  const size = disk({
    name: "coppice_host_disk_bytes",
    help: "Size of the file system below a folder, by the setting that names the folder",
  });
  const available = disk({
    name: "coppice_host_disk_available_bytes",
    help: "Space that is left on the file system below a folder, by the setting that names the folder",
  });
  const asked = new Map<string, Promise<void>>();
  async function look(): Promise<void> {
    await Promise.all(
      [...folders].map(async ([setting, path]) => {
        let asking = asked.get(setting);
        if (asking === undefined) {
          asking = measure(setting, path).finally(() => asked.delete(setting));
          asked.set(setting, asking);
        }
        // One that hangs, as that of a lost file server does, keeps one thread and no scrape.
        if (!(await fulfilledWithin(asking, { clock: systemClock, timeoutMs: DISK_TIMEOUT_MS })))
          forget(setting);
      }),
    );
  }
  async function measure(setting: string, path: string): Promise<void> {
    try {
      const { bavail, blocks, bsize } = await statfs(path);
      size.set({ setting }, blocks * bsize);
      available.set({ setting }, bavail * bsize);
    } catch {
      forget(setting);
    }
  }
  /** The last known values would say that all is well. */
  function forget(setting: string): void {
    size.remove({ setting });
    available.remove({ setting });
  }
  new Gauge({
    name: "coppice_health_check",
    help: "Checks of /readyz: 1 when it passes",
    labelNames: ["check"],
    registers,
    async collect() {
      const { checks } = await health.readiness();
      this.reset();
      for (const [check, result] of Object.entries(checks)) this.set({ check }, result === "ok" ? 1 : 0);
    },
  });
  new Gauge({
    name: "coppice_certificate_expiry_timestamp_seconds",
    help: "End of a listener's certificate, in seconds since the Unix epoch",
    labelNames: ["listener"],
    registers,
    collect() {
      for (const [listener, pem] of certificates())
        this.set({ listener }, new X509Certificate(pem).validToDate.getTime() / 1000);
    },
  });
  new Gauge({
    name: "coppice_last_backup_timestamp_seconds",
    help: "Time of the last `coppice backup` of this dataDir, in seconds since the Unix epoch; 0 before the first",
    registers,
    async collect() {
      const made = await lstat(join(dataDir, LAST_BACKUP)).catch(() => undefined);
      this.set((made?.mtimeMs ?? 0) / 1000);
    },
  });
}
