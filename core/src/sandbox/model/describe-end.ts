export type EndReason = keyof typeof END_REASONS;

interface EndFacts {
  /** In words for clients. */
  readonly words: string;
  /** True where the sandbox ended by itself. */
  readonly isLoss?: true;
  /** Of what it used up its limit, which its clients are told before their connections are cut. */
  readonly lacked?: "memory" | "disk";
}

/** Every reason of an end. */
export const END_REASONS = {
  "killed": { words: "it was killed" },
  "timed out": { words: "its time was up" },
  "out of memory": { words: "it ran out of memory", isLoss: true, lacked: "memory" },
  "out of disk": { words: "it used more disk than it may", isLoss: true, lacked: "disk" },
  "backend lost": { words: "its backend lost it", isLoss: true },
  "server lost": { words: "its server was lost" },
  "moved": { words: "its files went on in another sandbox, on another server" },
  "shutdown": { words: "its server was shut down" },
} as const satisfies Readonly<Record<string, EndFacts>>;

/**
 * Cause and details of an end.
 * @param reason of a signal, for example; without facts when it is none of an end.
 */
export function factsOfEnd(reason: unknown): Partial<EndFacts> {
  return typeof reason === "string" && Object.hasOwn(END_REASONS, reason)
    ? END_REASONS[reason as EndReason]
    : {};
}

/** Reason and time of a sandbox's end, for clients that may know about it. */
export function describeEnd({
  reason,
  endedAtMs,
}: {
  readonly reason: EndReason;
  readonly endedAtMs: number;
}): string {
  return `${END_REASONS[reason].words} at ${new Date(endedAtMs).toISOString()}`;
}
