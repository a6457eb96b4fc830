/**
 * Message that asks for the longest stall since the last one; the answer is in milliseconds. The first one starts the
 * meter, whose checks cost a percent of a processor.
 */
export const LONGEST_STALL = "longest stall";

/** Time between two checks of the event loop, in milliseconds. */
const INTERVAL_MS = 2;
const US_PER_MS = 1000;
const USUAL_PARSE_MS = 3;
const PARSES = 5;

/**
 * How often this machine's time for a fixed piece of work has that of the usual one in it, which parses 4 MiB of JSON in
 * 3 ms; 1 for a faster machine. One that is slow at the moment may take longer for a turn, in proportion.
 */
export function slowness(): number {
  const text = JSON.stringify("YWFh".repeat(1024 * 1024));
  const timesMs = Array.from({ length: PARSES }, () => {
    const startMs = performance.now();
    JSON.parse(text);
    return performance.now() - startMs;
  });
  return Math.max(1, Math.min(...timesMs) / USUAL_PARSE_MS);
}

// Preloaded into a server. Its child processes may inherit the option, but have no channel.
if (process.channel !== undefined) {
  // Processor time of this thread, which the kernel counts in ticks of some 4 ms; wall time includes other processes of
  // the machine. A turn took the lesser of both at most.
  const ranMs = (): number => {
    // Node 22 does not have it.
    if (!("threadCpuUsage" in process)) return Number.NaN;
    const { user, system } = process.threadCpuUsage();
    return (user + system) / US_PER_MS;
  };
  let lastRanMs = Number.NaN;
  let lastMs = Number.NaN;
  let longestMs = 0;
  const look = (): void => {
    const nowRanMs = ranMs();
    const nowMs = performance.now();
    longestMs = Math.max(longestMs, Math.min(nowRanMs - lastRanMs, nowMs - lastMs));
    lastRanMs = nowRanMs;
    lastMs = nowMs;
  };
  let checks: NodeJS.Timeout | undefined;
  process.on("message", (asked) => {
    if (asked !== LONGEST_STALL) return;
    if (checks === undefined) {
      lastRanMs = ranMs();
      lastMs = performance.now();
    }
    checks ??= setInterval(look, INTERVAL_MS).unref();
    look();
    process.send?.(String(longestMs));
    longestMs = 0;
  });
  // The channel alone must not keep the process alive.
  process.channel.unref();
}
