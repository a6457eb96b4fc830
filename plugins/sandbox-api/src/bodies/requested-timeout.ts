import { z } from "zod";

const milliseconds = () =>
  z
    .int()
    .min(-(2 ** 31) * 1000)
    .max(2 ** 31 * 1000);

/** Names of the time-out: E2B's `timeout` in seconds, and those of older Coppice clients. */
export const timeoutFields = {
  timeout: z.int32().nullish(),
  timeoutSeconds: z.int32().nullish(),
  timeout_seconds: z.int32().nullish(),
  timeoutMs: milliseconds().nullish(),
  timeout_ms: milliseconds().nullish(),
};

type TimeoutFields = { readonly [Name in keyof typeof timeoutFields]?: number | null | undefined };

/** The time-out of a body in milliseconds; E2B's name wins. */
export function requestedTimeoutMs(body: TimeoutFields): number | undefined {
  const seconds = body.timeout ?? body.timeoutSeconds ?? body.timeout_seconds;
  return seconds === undefined || seconds === null
    ? (body.timeoutMs ?? body.timeout_ms ?? undefined)
    : seconds * 1000;
}
