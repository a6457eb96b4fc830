import { readFile, readdir } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import type { Benchmark } from "../kit/benchmark.js";
import { repeated } from "../report/repeated.js";
import type { BenchedSandbox, ServerClient } from "../kit/server-client.js";
import { summarize } from "../report/statistics.js";
import type { BackendName } from "@coppice/test/harness/server/start-full-server.js";
import { startOverConnect } from "../kit/start-over-connect.js";
import type { WatchedProcess } from "../kit/watched-process.js";

const KIB = 1024;
const MIB = 2 ** 20;
const LIMIT_KIB = 0.8 * KIB;

/** Of a core, at 300 of them, and hardly more at more: what sleeps is not looked at. */
const LIMIT_PERCENT: Readonly<Record<BackendName, number>> = {
  "local-process": 1,
  "linux-namespaces": 0.5,
  "jail-freebsd": 1,
};

// Until the last of its threads has settled, and every sandbox was measured once.
const SETTLE_MS = 10_000;
const WARM_UPS = 50;

/**
 * Cost of idle sandboxes: their processes, the kernel's share, the growth of the server, its processor time, and how
 * long a command takes with one of them alive and with all.
 */
export const idle: Benchmark = async (server, { backend, sandboxes: count, seconds }) => {
  // Shared state that the first sandbox creates does not count for any of them.
  await server.killSandbox(await server.createSandbox());
  const before = await memoryNow(server.process);
  const first = await server.createSandbox();
  const alone = await commands(server, first, seconds);
  const sandboxes: BenchedSandbox[] = [first];
  while (sandboxes.length < count) {
    const batch = Math.min(availableParallelism(), count - sandboxes.length);
    sandboxes.push(...(await Promise.all(Array.from({ length: batch }, () => server.createSandbox()))));
  }
  await sleep(SETTLE_MS);
  const after = await memoryNow(server.process);
  const { allMs } = server.process.processorTime();
  await sleep(seconds * 1000);
  const idleMs = server.process.processorTime().allMs - allMs;
  const among = await commands(server, first, seconds);
  const each = (bytes: number): string => `${(bytes / count / KIB).toFixed(0)} KiB`;
  const whole = (bytes: number): string => `${(bytes / MIB).toFixed(1)} MiB`;
  const row = (label: string, bytes: number): string => `  ${label}: ${each(bytes)} each, ${whole(bytes)}`;
  const lines = [
    `idle: memory of ${count} sandboxes that do nothing`,
    row("agents (PSS)", after.agentBytes - before.agentBytes),
    row("kernel (slab, stacks, page tables)", after.kernelBytes - before.kernelBytes),
    row("server (RSS)", after.serverBytes - before.serverBytes),
    row("host (less available)", before.availableBytes - after.availableBytes),
    `  server (processor time): ${(idleMs / seconds).toFixed(1)} ms each second`,
  ];
  return {
    notes: [lines.join("\n")],
    rows: [
      {
        row: `Start of true with ${count} sandboxes alive, p99`,
        unit: "ms",
        here: summarize(among).p99,
        peer: summarize(alone).p99,
        against: "one alive",
      },
      {
        row: `processor time of the server with ${count} idle sandboxes`,
        unit: "% of a core",
        here: (100 * idleMs) / (seconds * 1000),
        peer: LIMIT_PERCENT[backend],
        against: "its limit",
      },
      {
        row: `memory of each of ${count} idle sandboxes`,
        unit: "KiB",
        here: (before.availableBytes - after.availableBytes) / count / KIB,
        peer: LIMIT_KIB,
        against: "its limit",
      },
    ],
    readings: [
      {
        title: `idle: Start of true in one of them`,
        unit: "ms",
        rows: [
          { label: "one alive", samples: alone },
          { label: `${count} alive`, samples: among },
        ],
      },
    ],
    comparisons: [],
    close: async () => {
      for (const sandbox of sandboxes) await server.killSandbox(sandbox);
    },
  };
};

/** @returns how long each of them took, one after the other. */
async function commands(
  server: ServerClient,
  sandbox: BenchedSandbox,
  seconds: number,
): Promise<readonly number[]> {
  // The first pays for connections, caches and compilation.
  for (let count = 0; count < WARM_UPS; count += 1) await startOverConnect(server, sandbox, { cmd: "true" });
  return repeated(() => startOverConnect(server, sandbox, { cmd: "true" }), seconds);
}

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
