import { readFile, readdir } from "node:fs/promises";
import { availableParallelism } from "node:os";
import type { Benchmark } from "../kit/benchmark.js";
import type { BenchedSandbox } from "../kit/server-client.js";
import type { WatchedProcess } from "../kit/watched-process.js";

const KIB = 1024;
const MIB = 2 ** 20;

/** Cost of idle sandboxes: their processes, the kernel's share, and the growth of the server. */
export const idle: Benchmark = async (server, { sandboxes: count }) => {
  // Shared state that the first sandbox creates does not count for any of them.
  await server.killSandbox(await server.createSandbox());
  const before = await memoryNow(server.process);
  const sandboxes: BenchedSandbox[] = [];
  while (sandboxes.length < count) {
    const batch = Math.min(availableParallelism(), count - sandboxes.length);
    sandboxes.push(...(await Promise.all(Array.from({ length: batch }, () => server.createSandbox()))));
  }
  const after = await memoryNow(server.process);
  const each = (bytes: number): string => `${(bytes / count / KIB).toFixed(0)} KiB`;
  const whole = (bytes: number): string => `${(bytes / MIB).toFixed(1)} MiB`;
  const row = (label: string, bytes: number): string => `  ${label}: ${each(bytes)} each, ${whole(bytes)}`;
  const lines = [
    `idle: memory of ${count} sandboxes that do nothing`,
    row("agents (PSS)", after.agentBytes - before.agentBytes),
    row("kernel (slab, stacks, page tables)", after.kernelBytes - before.kernelBytes),
    row("server (RSS)", after.serverBytes - before.serverBytes),
    row("host (less available)", before.availableBytes - after.availableBytes),
  ];
  return {
    notes: [lines.join("\n")],
    comparisons: [],
    close: async () => {
      for (const sandbox of sandboxes) await server.killSandbox(sandbox);
    },
  };
};

interface Memory {
  readonly agentBytes: number;
  readonly kernelBytes: number;
  readonly serverBytes: number;
  readonly availableBytes: number;
}

async function memoryNow(server: WatchedProcess): Promise<Memory> {
  const host = await readFile("/proc/meminfo", "utf8");
  const kernel = ["Slab", "KernelStack", "PageTables", "Percpu"].map((name) => bytesOf(host, name));
  return {
    agentBytes: await agentBytes(),
    kernelBytes: kernel.reduce((sum, bytes) => sum + bytes, 0),
    serverBytes: server.residentBytes(),
    availableBytes: bytesOf(host, "MemAvailable"),
  };
}

/** Memory (PSS) of all agents on this host. Those of other servers are included: they cancel out in the difference. */
async function agentBytes(): Promise<number> {
  let bytes = 0;
  for (const pid of await readdir("/proc")) {
    if (!/^\d+$/.test(pid)) continue;
    const command = await readFile(`/proc/${pid}/cmdline`, "latin1").catch(() => "");
    if (!command.startsWith("coppice-agent\0")) continue;
    bytes += bytesOf(await readFile(`/proc/${pid}/smaps_rollup`, "utf8").catch(() => ""), "Pss");
  }
  return bytes;
}

/** Value of a field in KiB, converted to bytes. */
function bytesOf(text: string, name: string): number {
  const [, kib = "0"] = new RegExp(`^${name}:\\s+(\\d+) kB`, "m").exec(text) ?? [];
  return Number(kib) * KIB;
}
