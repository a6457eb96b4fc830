import { z } from "zod";
import type { BuildContext, BuildResult } from "./build-context.js";

/** Label of an image's configuration with the template that the image was made of, in JSON. */
const LABEL = "io.coppice.template";
const VERSION = 1;
/** Longer ones are not of this server: commands and variables came in a request body. */
const LONGEST_LABEL = 512 * 1024;

/** What a template has beside its files. */
export interface PushedTemplate extends Required<BuildContext>, Pick<BuildResult, "start"> {}

const text = z.string().regex(/^[^\0]*$/);
const context = {
  user: text.min(1),
  workdir: text.optional().transform((value) => value),
  environment: z.record(text.min(1), text),
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
export function imageSettingsOf(template: PushedTemplate): object {
  const { user, workdir, environment, start } = template;
  return {
    User: user,
    ...(workdir !== undefined && { WorkingDir: workdir }),
    Env: Object.entries(environment).map(([name, value]) => `${name}=${value}`),
    ...(start !== undefined && { Cmd: ["/bin/bash", "-l", "-c", start.command] }),
    Labels: { [LABEL]: JSON.stringify({ version: VERSION, ...template }) },
  };
}

/** The template among the labels of an image; undefined without one that this server can read. */
export function pushedTemplateIn(labels: Readonly<Record<string, string>>): PushedTemplate | undefined {
  const found = labels[LABEL] ?? "";
  if (found === "" || found.length > LONGEST_LABEL) return undefined;
  try {
    const { version: _, ...template } = label.parse(JSON.parse(found));
    return template;
  } catch {
    return undefined;
  }
}
