import { posix } from "node:path";
import { MEBIBYTE, parseJson } from "@coppice/core";
import { z } from "zod";
import type { BuildContext, BuildResult } from "./layer.js";
import { type BuildLimits, LEAST_MEMORY_MIB } from "./build-record.js";
import type { BuildRequest } from "./build-request.js";
import type { TemplatesConfig } from "../templates-config.js";

/** Limits of a pushed template, as far as this server allows them; undefined where a build does not restore them. */
export function restoredLimits(
  { limits: asked, restore }: Pick<BuildRequest, "limits" | "restore">,
  { context: { limits } }: Pick<BuildResult, "context">,
  settings: Pick<
    TemplatesConfig,
    "maxCpuCount" | "maxMemory" | "maxDisk" | "defaultCpuCount" | "defaultMemory"
  >,
  warn: (message: string) => void,
): BuildLimits | undefined {
  if (restore?.limits !== true || limits === undefined) return undefined;
  const atMost = (wanted: number, most: number, unit: string): number => {
    if (wanted > most) warn(`The template has ${wanted} ${unit}, of which this server allows ${most}`);
    return Math.min(wanted, most);
  };
  const { diskMiB } = limits;
  const memoryMiB = limits.memoryMiB ?? asked.memoryMiB ?? Math.floor(settings.defaultMemory / MEBIBYTE);
  return {
    cpuCount: atMost(
      limits.cpuCount ?? asked.cpuCount ?? settings.defaultCpuCount,
      settings.maxCpuCount,
      "CPUs",
    ),
    memoryMiB: atMost(
      Math.max(memoryMiB, LEAST_MEMORY_MIB),
      Math.floor(settings.maxMemory / MEBIBYTE),
      "MiB of memory",
    ),
    diskMiB:
      diskMiB === undefined
        ? undefined
        : atMost(diskMiB, Math.floor(settings.maxDisk / MEBIBYTE), "MiB of disk"),
  };
}

/** Label of an image's configuration with the template that the image was made of, in JSON. */
export const LABEL = "io.coppice.template";
const VERSION = 1;

/** What a template has beside its files. */
export interface PushedTemplate extends Required<BuildContext>, Pick<BuildResult, "start"> {}

/** Configuration of an image's programs, as OCI has it. */
interface ImageSettings {
  readonly User: string;
  readonly WorkingDir?: string;
  readonly Env: readonly string[];
  readonly Cmd?: readonly string[];
  readonly Labels: { readonly [LABEL]: string };
}

const text = z.string().regex(/^[^\0]*$/);
/** A record of zod takes some microseconds for each of thousands. */
const variables = z.custom<Readonly<Record<string, string>>>(
  (value) =>
    typeof value === "object" &&
    value !== null &&
    !Array.isArray(value) &&
    Object.entries(value).every(
      ([name, one]) => name !== "" && typeof one === "string" && !`${name}${one}`.includes("\0"),
    ),
);
const context = {
  user: text.min(1),
  workdir: text.optional().transform((value) => (value === undefined ? value : posix.resolve("/", value))),
  environment: variables,
};
const positive = z.int().positive();
const label = z.object({
  version: z.literal(VERSION),
  ...context,
  start: z
    .object({
      command: text.min(1),
      ready: text.optional().transform((value) => value),
      ...context,
      ports: z.array(z.int().min(1).max(65_535)).max(100),
    })
    .optional()
    .transform((value) => value),
  limits: z.object({
    cpuCount: positive.optional(),
    memoryMiB: positive.optional(),
    diskMiB: positive.optional(),
  }),
});

/** Configuration of an image of a template: for other programs as far as they know such, and whole for this one. */
export function imageSettingsOf(template: PushedTemplate): ImageSettings {
  const { user, workdir, environment, start } = template;
  return {
    User: user,
    ...(workdir !== undefined && { WorkingDir: workdir }),
    Env: Object.entries(environment).map(([name, value]) => `${name}=${value}`),
    ...(start !== undefined && { Cmd: ["/bin/bash", "-l", "-c", start.command] }),
    Labels: { [LABEL]: JSON.stringify({ version: VERSION, ...template }) },
  };
}

/** Reads the label of an image. @returns undefined for one that this server cannot read. */
export function readPushedTemplate(written: string, mostValues: number): PushedTemplate | undefined {
  if (written === "") return undefined;
  try {
    const { version: _, ...template } = label.parse(parseJson(Buffer.from(written), mostValues));
    return template;
  } catch {
    return undefined;
  }
}
