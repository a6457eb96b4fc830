import type { CreateSandbox } from "@coppice/core";
import { z } from "zod";

type ReadinessProbe = NonNullable<CreateSandbox["readinessProbe"]>;

const port = z.int().min(1).max(65_535);
const milliseconds = () => z.int().positive().nullish();
const word = z.string().max(65_536).refine(isFreeOfNul, "a command has no NUL in it");

const times = {
  timeoutMs: milliseconds(),
  timeout_ms: milliseconds(),
  intervalMs: milliseconds(),
  interval_ms: milliseconds(),
};

const readinessProbe = z
  .discriminatedUnion("type", [
    z.object({ type: z.literal("tcp"), port, ...times }),
    z.object({
      type: z.literal("http"),
      port,
      path: z
        .string()
        .max(8192)
        .regex(/^\/[\x21-\x7e]*$/, "expected a path of printable ASCII that begins with /")
        .nullish()
        .transform((path) => path ?? "/"),
      ...times,
    }),
    z.object({
      type: z.literal("shell"),
      command: z.union([word.min(1), z.array(word).min(1).max(1024)]),
      ...times,
    }),
  ])
  .transform(({ timeoutMs, timeout_ms, intervalMs, interval_ms, ...probe }): ReadinessProbe => ({
    ...probe,
    timeoutMs: timeoutMs ?? timeout_ms ?? undefined,
    intervalMs: intervalMs ?? interval_ms ?? undefined,
  }))
  .nullish();

/** Readiness probe of a create or fork body, under both its names. */
export const readinessFields = { readinessProbe, readiness_probe: readinessProbe };

const schema = z.object(readinessFields);

/** The probe of a body; undefined = the template's. */
export function requestedProbe(body: z.infer<typeof schema>): ReadinessProbe | undefined {
  return body.readinessProbe ?? body.readiness_probe ?? undefined;
}

function isFreeOfNul(text: string): boolean {
  return !text.includes("\0");
}
