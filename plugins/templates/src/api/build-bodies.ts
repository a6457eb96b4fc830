import { z } from "zod";
import {
  type BuildLimits,
  type BuildRecord,
  LEAST_MEMORY_MIB,
  type LogEntry,
} from "../model/build-record.js";
import type { BuildBase } from "../model/build-request.js";
import { debianBase, type TemplatesConfig } from "../templates-config.js";
import type { Transfer } from "../model/builder.js";
import { MEBIBYTE, SandboxError } from "@coppice/core";
import type { SandboxBackend } from "@coppice/core/backend";
import { REASONS } from "../reasons.js";

const MAX_NAME = 1000;

const tags = z.array(z.string().max(MAX_NAME)).max(1000);

/** Body of `POST /v3/templates`. */
export const requestBody = z.object({
  name: z.string().max(MAX_NAME).nullish(),
  /** Of older clients, in place of `name`. */
  alias: z.string().max(MAX_NAME).nullish(),
  tags: tags.nullish(),
  cpuCount: z.int().min(1).nullish(),
  memoryMB: z.int().min(LEAST_MEMORY_MIB).nullish(),
  minFreeDiskMb: z.int().min(0).nullish(),
});

/** Account of a registry. */
export const registryBody = z.discriminatedUnion("type", [
  z.object({ type: z.literal("registry"), username: z.string(), password: z.string() }),
  z.object({
    type: z.literal("aws"),
    awsAccessKeyId: z.string(),
    awsSecretAccessKey: z.string(),
    awsRegion: z.string(),
  }),
  z.object({ type: z.literal("gcp"), serviceAccountJson: z.string() }),
]);

const step = z
  .object({
    type: z.string().min(1).max(64),
    args: z.array(z.string()).nullish(),
    filesHash: z
      .string()
      .regex(/^[0-9a-f]{64}$/, "expected 64 hexadecimal digits")
      .nullish(),
    force: z.boolean().nullish(),
  })
  .transform(({ type, args, filesHash, force }) => ({
    type,
    args: args ?? [],
    filesHash: filesHash ?? undefined,
    force: force ?? false,
  }));

/** Body of `POST /v2/templates/{id}/builds/{buildID}`. */
export const startBody = (maxSteps: number) =>
  z
    .object({
      fromImage: z.string().max(MAX_NAME).nullish(),
      fromTemplate: z.string().max(MAX_NAME).nullish(),
      /** Of `coppice template build`. */
      fromDebian: debianBase.nullish(),
      fromImageRegistry: registryBody.nullish(),
      force: z.boolean().nullish(),
      steps: z.array(step).max(maxSteps).nullish(),
      startCmd: z.string().nullish(),
      readyCmd: z.string().nullish(),
      /** Of `coppice template pull`: the image may be one of a pushed template. */
      restore: z.object({ limits: z.boolean() }).nullish(),
    })
    .transform((body) => ({
      base: baseOf(body),
      force: body.force ?? false,
      isReproducible: false,
      steps: body.steps ?? [],
      startCommand: body.startCmd || undefined,
      readyCommand: body.readyCmd || undefined,
      ...(body.restore && { restore: body.restore }),
    }));

/** @throws SandboxError invalid_argument */
function baseOf({
  fromImage,
  fromTemplate,
  fromDebian,
  fromImageRegistry,
}: {
  readonly fromImage?: string | null | undefined;
  readonly fromTemplate?: string | null | undefined;
  readonly fromDebian?: z.infer<typeof debianBase> | null | undefined;
  readonly fromImageRegistry?: z.infer<typeof registryBody> | null | undefined;
}): BuildBase {
  if (fromDebian && !fromImage && !fromTemplate) return { kind: "debian", ...fromDebian };
  if (fromDebian)
    throw new SandboxError(REASONS.template_build_invalid, "fromDebian goes with neither of the others");
  if (fromImage && !fromTemplate)
    return { kind: "image", reference: fromImage, credentials: fromImageRegistry ?? undefined };
  if (fromTemplate && !fromImage) return { kind: "template", reference: fromTemplate };
  throw new SandboxError(REASONS.template_build_invalid, "must specify either fromImage or fromTemplate");
}

/** Limits that a request asks for. @throws SandboxError invalid_argument, with E2B's texts. */
export function limitsOf(
  { cpuCount, memoryMB, minFreeDiskMb }: z.infer<typeof requestBody>,
  { config, backend }: { readonly config: TemplatesConfig; readonly backend: SandboxBackend },
): BuildLimits {
  const refuse = (text: string): never => {
    throw new SandboxError(REASONS.template_limits_invalid, text);
  };
  const help = "(if you need more, ask the operator of this server)";
  const cpus = cpuCount ?? config.defaultCpuCount;
  if (cpus > config.maxCpuCount) refuse(`CPU count can't be higher than ${config.maxCpuCount} ${help}`);
  if (cpus !== 1 && cpus % 2 !== 0) refuse("CPU count must be 1 or an even number");
  const memoryMiB = memoryMB ?? Math.floor(config.defaultMemory / MEBIBYTE);
  const mostMiB = Math.floor(config.maxMemory / MEBIBYTE);
  if (memoryMiB % 2 !== 0) refuse("Memory must be divisible by 2");
  if (memoryMiB > mostMiB) refuse(`Memory can't be higher than ${mostMiB} MiB ${help}`);
  const diskMiB = minFreeDiskMb ?? 0;
  const mostDiskMiB = Math.floor(config.maxDisk / MEBIBYTE);
  if (diskMiB > mostDiskMiB) refuse(`Free disk can't be higher than ${mostDiskMiB} MiB`);
  // A backend's default is not made smaller: the field says how much there has to be at least.
  const isMore = diskMiB > (backend.defaultLimits?.diskMiB ?? 0);
  return { cpuCount: cpus, memoryMiB, diskMiB: isMore ? diskMiB : undefined };
}

/** An entry of a log in answers. */
export function logEntryBody({ atMs, level, message, step: of }: LogEntry) {
  return { timestamp: new Date(atMs).toISOString(), level, message, ...(of !== undefined && { step: of }) };
}

export interface StatusOptions {
  readonly entries: readonly LogEntry[];
  /** Of the step that failed. */
  readonly failed: readonly LogEntry[];
  /** Of the image that it pulls. */
  readonly transfer: Transfer | undefined;
}

/** Body of `GET /templates/{id}/builds/{buildID}/status`. */
export function statusBody(
  { id, templateId, state, reason }: BuildRecord,
  { entries, failed, transfer }: StatusOptions,
) {
  return {
    templateID: templateId,
    buildID: id,
    status: state,
    logEntries: entries.map(logEntryBody),
    // Clients require it.
    logs: [],
    // Of coppice template: SDKs pass over it.
    ...(transfer && { progress: transfer }),
    ...(reason !== undefined && {
      reason: {
        message: reason.message,
        ...(reason.step !== undefined && { step: reason.step }),
        logEntries: failed.map(logEntryBody),
      },
    }),
  };
}
