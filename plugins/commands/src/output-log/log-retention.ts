import { fairShare } from "@coppice/core";
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

/**
 * Segments beyond the limits of all sandboxes together: of the tenants with the most, those that were not written for the
 * longest time.
 */
export function excessInTotal(logs: Iterable<SandboxLog>, limits: RetentionLimits): readonly Excess[] {
  const all: Excess[] = [];
  const left = new Map<SandboxLog, number>();
  const owners = new Map<string, { bytes: number; logs: number }>();
  for (const log of logs) {
    if (log.segments.length === 0) continue;
    left.set(log, log.segments.length);
    const own = owners.get(log.owner) ?? { bytes: 0, logs: 0 };
    owners.set(log.owner, own);
    own.logs += 1;
    for (const segment of log.segments) {
      all.push({ log, segment });
      own.bytes += segment.bytes;
    }
  }
  const mostBytes = fairShare(
    [...owners.values()].map(({ bytes }) => bytes),
    limits.maxTotal,
  );
  const mostLogs = fairShare(
    [...owners.values()].map(({ logs }) => logs),
    limits.maxSandboxes,
  );
  if (mostBytes === Infinity && mostLogs === Infinity) return [];
  all.sort((one, other) => one.segment.writtenAtMs - other.segment.writtenAtMs);
  return all.filter(({ log, segment }) => {
    const own = owners.get(log.owner);
    if (own === undefined || (own.bytes <= mostBytes && own.logs <= mostLogs)) return false;
    own.bytes -= segment.bytes;
    const rest = (left.get(log) ?? 0) - 1;
    left.set(log, rest);
    if (rest === 0) own.logs -= 1;
    return true;
  });
}
