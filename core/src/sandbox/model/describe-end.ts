import type { EndReason } from "./live-sandbox.js";

/** Every reason of an end, in words for clients. */
export const END_REASONS: Readonly<Record<EndReason, string>> = {
  "killed": "it was killed",
  "timed out": "its time was up",
  "out of memory": "it ran out of memory",
  "out of disk": "it used more disk than it may",
  "backend lost": "its backend lost it",
  "server lost": "its server was lost",
  "moved": "its files went on in another sandbox, on another server",
  "shutdown": "its server was shut down",
};

/** Reason and time of a sandbox's end, for clients that may know about it. */
export function describeEnd({
  reason,
  endedAtMs,
}: {
  readonly reason: EndReason;
  readonly endedAtMs: number;
}): string {
  return `${END_REASONS[reason]} at ${new Date(endedAtMs).toISOString()}`;
}
