/** The part of an operation of a client that tells whether the sandbox was served correctly. */
export type Action =
  /** Made, with its counter at zero. */
  | { readonly kind: "create" }
  /** Its counter was raised by one; `value` is what the sandbox answered, absent where the outcome is unknown. */
  | { readonly kind: "increment"; readonly value?: number }
  /** Its counter was read. */
  | { readonly kind: "read"; readonly value: number }
  /** A server answered as for a sandbox that runs. */
  | { readonly kind: "there" }
  /** A server answered that there is none: it ended, was lost, or is in no complete list. */
  | { readonly kind: "gone" }
  | { readonly kind: "kill" };

/** An operation on one sandbox. */
export interface Operation {
  readonly action: Action;
  /** Who did it, for people who read a failure. */
  readonly by: string;
  /** Before it was asked for. Milliseconds of one monotonic clock. */
  readonly startMs: number;
  /** After its answer; undefined where none came or it did not tell: it takes effect at any later time, or never. */
  readonly endMs: number | undefined;
}

export function describeOperation({ action, by, startMs, endMs }: Operation): string {
  const value = "value" in action && action.value !== undefined ? ` = ${action.value}` : "";
  const end = endMs === undefined ? "unknown" : endMs.toFixed(0);
  return `${startMs.toFixed(0)}–${end} ms ${by}: ${action.kind}${value}`;
}
