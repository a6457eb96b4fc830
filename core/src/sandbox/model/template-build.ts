import { z } from "zod";
import type { Inferred } from "../../sqlite/table.js";

/** Limits of a record, as the contract with backends has them. */
export const limits = z.object({
  cpuCount: z.number().optional(),
  memoryMiB: z.number().optional(),
  diskMiB: z.number().optional(),
  processes: z.number().optional(),
});

/** A command that runs in every sandbox of a template from its start on. */
export type StartCommand = Inferred<typeof startCommand>;

const startCommand = z.object({
  /** A line for `bash -l -c`. */
  command: z.string(),
  /** A line for `bash -l -c`, repeated until it ends with 0; undefined = the sandbox is ready at once. */
  ready: z.string().optional(),
  user: z.string(),
  workdir: z.string().optional(),
  environment: z.record(z.string(), z.string()),
  /** TCP ports that it listened on at the end of its build. They tell its readiness where `ready` only sleeps. */
  ports: z.array(z.number()),
});

/** One version of a template, as its sandboxes record it: they may outlive it. */
export type TemplateBuild = Inferred<typeof templateBuild>;

export const templateBuild = z.object({
  /** A UUID. */
  id: z.string(),
  image: z.object({ id: z.string(), user: z.string(), workdir: z.string().optional() }),
  /** Default limits of its sandboxes. */
  limits,
  start: startCommand.optional(),
});
