import { type CreateSandbox, environmentVariables } from "@coppice/core";
import { z } from "zod";
import type { CommandsV1Config } from "../commands-v1-config.js";
import { cpuQuantity, lifetime, memoryQuantity } from "./quantities.js";

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

export type CreateBody = z.infer<ReturnType<typeof createBody>>;

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
