/** Message that asks for the longest stall since the last one; the answer is in milliseconds. */
export const LONGEST_STALL = "longest stall";

/** How often the event loop is looked at. */
const INTERVAL_MS = 2;
const US_PER_MS = 1000;

// Loaded into a server before anything else. What that starts may inherit the option, and has no channel.
if (process.channel !== undefined) {
  // By the processor time of this thread: the clock would also tell of the others that share the machine.
  const ranMs = (): number => {
    // Node 22 does not tell.
    if (!("threadCpuUsage" in process)) return Number.NaN;
    const { user, system } = process.threadCpuUsage();
    return (user + system) / US_PER_MS;
  };
  let lastMs = ranMs();
  let longestMs = 0;
  const look = (): void => {
    const nowMs = ranMs();
    longestMs = Math.max(longestMs, nowMs - lastMs);
    lastMs = nowMs;
  };
  setInterval(look, INTERVAL_MS).unref();
  process.on("message", (asked) => {
    if (asked !== LONGEST_STALL) return;
    look();
    process.send?.(String(longestMs));
    longestMs = 0;
  });
  // To be asked is no reason to live.
  process.channel.unref();
}
