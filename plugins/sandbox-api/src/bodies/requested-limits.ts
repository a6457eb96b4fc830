import type { Sandboxes } from "@coppice/core";
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

/** Lifetime of a sandbox when `POST /sandboxes` names no time-out, as E2B has it, and the shortest that `/refreshes` sets. */
export const LEGACY_TIMEOUT_MS = 15_000;

/** The time-out of a body in milliseconds; E2B's name wins. */
export function requestedTimeoutMs(body: TimeoutFields): number | undefined {
  const seconds = body.timeout ?? body.timeoutSeconds ?? body.timeout_seconds;
  return seconds === undefined || seconds === null
    ? (body.timeoutMs ?? body.timeout_ms ?? undefined)
    : seconds * 1000;
}

/** Limits that a sandbox is to have. */
export type LimitsChange = Parameters<Sandboxes["setLimits"]>[1];

/** E2B's minimum. With less not even the first program of a sandbox would start. */
const MIN_MEMORY_MIB = 128;
const MIN_DISK_MIB = 64;
const MIN_CPU_COUNT = 0.1;

const cpuCount = amount(z.number(), MIN_CPU_COUNT);
const memoryMB = amount(z.int(), MIN_MEMORY_MIB);
const diskSizeMB = amount(z.int(), MIN_DISK_MIB);

/** The limits of a create body and of `PATCH /sandboxes/:id/limits`, under all their names. 0 = the template's. */
export const limitFields = {
  cpuCount,
  cpu_count: cpuCount,
  memoryMB,
  memory_mb: memoryMB,
  diskSizeMB,
  disk_size_mb: diskSizeMB,
  writable_layer_mb: diskSizeMB,
};

const schema = z.object(limitFields);

/** Translates the limits of a body. CPUs are counted, as in E2B: 1.5 is one and a half. */
export function requestedLimits(body: z.infer<typeof schema>): LimitsChange {
  return {
    cpuCount: body.cpuCount ?? body.cpu_count ?? undefined,
    memoryMiB: body.memoryMB ?? body.memory_mb ?? undefined,
    diskMiB: body.diskSizeMB ?? body.disk_size_mb ?? body.writable_layer_mb ?? undefined,
  };
}

function amount(number: z.ZodNumber, least: number) {
  return number
    .min(0)
    .max(2 ** 31 - 1)
    .refine((value) => value === 0 || value >= least, `expected 0 or at least ${least}`)
    .nullish();
}
