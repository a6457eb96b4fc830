import { readdir, readFile } from "node:fs/promises";

/** Proportional memory (PSS) of all processes of a sandbox, in MiB. Linux only. */
export async function memoryShareOf(id: string): Promise<number> {
  let kibibytes = 0;
  for (const pid of await readdir("/proc")) {
    if (!/^\d+$/.test(pid)) continue;
    const environment = await readFile(`/proc/${pid}/environ`, "utf8").catch(() => "");
    if (!environment.split("\0").includes(`E2B_SANDBOX_ID=${id}`)) continue;
    const rollup = await readFile(`/proc/${pid}/smaps_rollup`, "utf8").catch(() => "");
    kibibytes += Number(/^Pss: +(\d+) kB$/m.exec(rollup)?.[1] ?? 0);
  }
  if (kibibytes === 0) throw new Error("no process of the sandbox was found");
  return kibibytes / 1024;
}
