import type { Stats } from "@coppice/core";

const MIB = 2 ** 20;

/** Resource usage of a sandbox in envd's form. */
export function metricsBody(stats: Stats, nowMs: number) {
  return {
    ts: Math.floor(nowMs / 1000),
    cpu_count: stats.cpuCount,
    // In envd 100 means all CPUs together.
    cpu_used_pct: Math.round((stats.cpuUsedPercent / Math.max(stats.cpuCount, 1)) * 100) / 100,
    mem_total: stats.memoryTotalBytes,
    mem_used: stats.memoryUsedBytes,
    mem_cache: stats.memoryCacheBytes,
    mem_total_mib: Math.floor(stats.memoryTotalBytes / MIB),
    mem_used_mib: Math.floor(stats.memoryUsedBytes / MIB),
    disk_used: stats.diskUsedBytes,
    disk_total: stats.diskTotalBytes,
  };
}
