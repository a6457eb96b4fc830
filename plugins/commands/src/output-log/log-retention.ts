import type { OutputLogConfig } from "../commands-config.js";
import type { SandboxLog, Segment } from "./sandbox-log.js";

type Limits = "maxPerSandbox" | "maxTotal" | "maxSandboxes" | "maxAge";
export type RetentionLimits = Pick<OutputLogConfig, Limits> & { readonly maxSegmentsPerSandbox: number };

export interface Excess {
  readonly log: SandboxLog;
  readonly segment: Segment;
}

/** Segments of one sandbox beyond its limits, oldest first. The segment being written stays while it is not too old. */
export function excessOfSandbox(log: SandboxLog, limits: RetentionLimits, nowMs: number): readonly Excess[] {
  const excess: Excess[] = [];
  let { bytes } = log;
  let left = log.segments.length;
  for (const segment of log.segments) {
    const isOld = nowMs - segment.writtenAtMs >= limits.maxAge;
    const isTooMuch = bytes > limits.maxPerSandbox || left > limits.maxSegmentsPerSandbox;
    // Segments age in their order, so nothing after a young one is old.
    if (!isOld && (!isTooMuch || segment.index !== undefined)) break;
    excess.push({ log, segment });
    bytes -= segment.bytes;
    left -= 1;
  }
  return excess;
}

/** Segments beyond the limit of all sandboxes together, the longest unwritten first. */
export function excessInTotal(logs: Iterable<SandboxLog>, limits: RetentionLimits): readonly Excess[] {
  const all: Excess[] = [];
  const left = new Map<SandboxLog, number>();
  let bytes = 0;
  for (const log of logs) {
    if (log.segments.length > 0) left.set(log, log.segments.length);
    for (const segment of log.segments) {
      all.push({ log, segment });
      bytes += segment.bytes;
    }
  }
  if (bytes <= limits.maxTotal && left.size <= limits.maxSandboxes) return [];
  all.sort((one, other) => one.segment.writtenAtMs - other.segment.writtenAtMs);
  const excess: Excess[] = [];
  for (const each of all) {
    if (bytes <= limits.maxTotal && left.size <= limits.maxSandboxes) break;
    excess.push(each);
    bytes -= each.segment.bytes;
    const rest = (left.get(each.log) ?? 0) - 1;
    if (rest > 0) left.set(each.log, rest);
    else left.delete(each.log);
  }
  return excess;
}
