import {
  type CreateSandbox,
  environmentVariables,
  MEBIBYTE,
  type LiveSandbox,
  messageOf,
  SandboxError,
  type Sandboxes,
  ignoring,
} from "@coppice/core";
import { z } from "zod";
import type { CommandsV1Config } from "../commands-v1-config.js";
import { REASONS } from "../reasons.js";

const BYTES = {
  "": 1,
  "k": 1e3,
  "K": 1e3,
  "M": 1e6,
  "G": 1e9,
  "T": 1e12,
  "Ki": 2 ** 10,
  "Mi": 2 ** 20,
  "Gi": 2 ** 30,
  "Ti": 2 ** 40,
};
const MEMORY = /^(\d{1,15}(?:\.\d{1,9})?)([kKMGT]i?|)$/;
const CPU = /^(\d{1,9}(?:\.\d{1,9})?)(m?)$/;
const DURATION_MS = { h: 3_600_000, m: 60_000, s: 1_000, ms: 1 };
const DURATION = /^(?:\d{1,9}(?:\.\d{1,9})?(?:h|ms|m|s))+$/;

/** CPUs, as Kubernetes writes them: `1.5`, or `1500m`. */
const cpuQuantity = z
  .union([z.string(), z.number().transform(String)])
  .transform((text, context) => {
    const [, amount, unit] = CPU.exec(text) ?? refuse(context, 'expected CPUs such as "1.5" or "1500m"');
    return unit === "m" ? Number(amount) / 1000 : Number(amount);
  })
  .pipe(z.number().min(0.1));

/** Memory, as Kubernetes writes it: `4Gi`, `512Mi`, or a number of bytes. In MiB. */
const memoryQuantity = z
  .union([z.string(), z.number().transform(String)])
  .transform((text, context) => {
    const [, amount, unit = ""] =
      MEMORY.exec(text) ?? refuse(context, 'expected memory such as "4Gi" or "512Mi"');
    return Math.floor((Number(amount) * BYTES[unit as keyof typeof BYTES]) / MEBIBYTE);
  })
  .pipe(z.int().min(128, "expected at least 128Mi"));

/** A length of time: seconds, or as Go writes it, `1h30m`. In milliseconds. */
const lifetime = z
  .union([
    z.number().transform((seconds) => seconds * 1000),
    z.string().transform((text, context) => {
      if (!DURATION.test(text)) refuse(context, 'expected seconds, or a time such as "90m"');
      const parts = [...text.matchAll(/([\d.]+)(h|ms|m|s)/g)];
      return parts.reduce((sum, [, amount, unit]) => {
        return sum + Number(amount) * DURATION_MS[unit as keyof typeof DURATION_MS];
      }, 0);
    }),
  ])
  .pipe(z.number().positive());

function refuse(context: z.RefinementCtx, message: string): [] {
  context.addIssue({ code: "custom", message });
  return [];
}

const MINUTE_MS = 60_000;
export const HOUR_MS = 3_600_000;
const MAX_AUTO_STOP_MINUTES = 525_600;

/** A name for paths, as DNS labels have it. */
export const sandboxName = z
  .string()
  .regex(
    /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/,
    "expected 1 to 63 lower-case letters, digits and - between them",
  );

/** Idle time in minutes; 0 = never. */
export const autoStopMinutes = z.number().min(0).max(MAX_AUTO_STOP_MINUTES);

/** The body of `POST /v1/sandboxes`. */
export function createBody(config: CommandsV1Config) {
  return z.object({
    image: z.string().min(1),
    name: sandboxName.nullish(),
    tier: z.enum(["ephemeral", "persistent"]).nullish(),
    disk_gb: z
      .number()
      .positive()
      .max(2 ** 20)
      .nullish(),
    cpu: cpuQuantity.nullish(),
    memory: memoryQuantity.nullish(),
    auto_stop_minutes: autoStopMinutes.nullish(),
    auto_delete_hours: z
      .number()
      .positive()
      .max(config.maxAutoDelete / HOUR_MS)
      .nullish(),
    ttl: lifetime.pipe(z.number().max(config.maxAutoDelete)).nullish(),
    env: environmentVariables(config.maxVariable).nullish(),
  });
}

type CreateBody = z.infer<ReturnType<typeof createBody>>;

/** Marks sandboxes of this interface for those who list them by another one. */
export const MADE_HERE = { "created-by": "commands-v1" } as const;

/** The sandbox of a body. It has no time-out: this plugin stops and deletes it. */
export function toCreateSandbox(body: CreateBody): CreateSandbox {
  return {
    template: body.image,
    timeoutMs: undefined,
    ...(body.tier === "persistent" && { onTimeout: "pause", keepsMemory: false }),
    metadata: MADE_HERE,
    environment: body.env ?? {},
    secure: true,
    limits: {
      cpuCount: body.cpu ?? undefined,
      memoryMiB: body.memory ?? undefined,
      diskMiB: body.disk_gb ? Math.ceil(body.disk_gb * 1024) : undefined,
    },
  };
}

/** Times of a sandbox: idle time until it stops, life until it is deleted. In milliseconds. */
export function lifeOf(body: CreateBody, config: CommandsV1Config) {
  const { auto_stop_minutes: minutes, auto_delete_hours: hours, ttl } = body;
  return {
    autoStopMs: typeof minutes === "number" ? minutes * MINUTE_MS : config.autoStop,
    lifeMs: ttl ?? (typeof hours === "number" ? hours * HOUR_MS : config.autoDelete),
  };
}

/**
 * Creates a sandbox with the directory in which its commands start; without that nothing of the sandbox is kept.
 * @throws SandboxError unavailable when the directory cannot be made; the errors of `Sandboxes.create`.
 */
export async function createWithWorkdir(
  sandboxes: Pick<Sandboxes, "create" | "kill">,
  wanted: CreateSandbox,
  { workdir, signal }: { readonly workdir: string; readonly signal?: AbortSignal | undefined },
): Promise<LiveSandbox> {
  const sandbox = await sandboxes.create(wanted, signal);
  try {
    await makeWorkdir(sandbox, workdir);
    return sandbox;
  } catch (error) {
    await sandboxes.kill(sandbox.record.id).catch(() => undefined);
    const text = `${workdir} could not be made: ${messageOf(error)}`;
    throw new SandboxError(REASONS.sandbox_setup_failed, text, { cause: error });
  }
}

export async function makeWorkdir({ runtime }: LiveSandbox, workdir: string): Promise<void> {
  await runtime.files.makeDir(workdir).catch(ignoring("already_exists"));
}
