import { createReadStream } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { LABEL, type PushedTemplate, readPushedTemplate } from "../model/pushed-template.js";
import { type JsonLimits, readJson } from "./read-bounded.js";

const descriptor = z.object({ digest: z.string().regex(/^sha256:[0-9a-f]{64}$/) });
const index = z.object({ manifests: z.tuple([descriptor]) });
const manifest = z.object({ config: descriptor });
const imageConfig = z.object({
  architecture: z.string().optional(),
  config: z
    .object({
      Env: z.array(z.string()).nullish(),
      Labels: z.object({ [LABEL]: z.string().optional() }).nullish(),
    })
    .nullish(),
});

/** Facts about the one image of a layout. */
export interface LayoutFacts {
  readonly architecture: string | undefined;
  readonly environment: Readonly<Record<string, string>>;
  /** The template that was pushed as this image. */
  readonly template: PushedTemplate | undefined;
}

/** Reads the configuration of the one image of an OCI image layout. @throws Error when it is not as specified */
export async function readLayout(layout: string, limits: JsonLimits): Promise<LayoutFacts> {
  const read = async <T>(path: string, schema: z.ZodType<T>): Promise<T> =>
    schema.parse(await readJson(createReadStream(join(layout, path)), limits));
  const blobOf = ({ digest }: z.infer<typeof descriptor>): string =>
    digest.replace("sha256:", "blobs/sha256/");
  const { manifests } = await read("index.json", index);
  const { config } = await read(blobOf(manifests[0]), manifest);
  const { architecture, config: settings } = await read(blobOf(config), imageConfig);
  return {
    architecture,
    environment: variablesOf(settings?.Env ?? []),
    template: readPushedTemplate(settings?.Labels?.[LABEL] ?? "", limits.maxValues),
  };
}

/** Variables of `NAME=value` lines; empty values and broken lines are left out, as at E2B. */
function variablesOf(lines: readonly string[]): Record<string, string> {
  const pairs = lines.flatMap((line): readonly (readonly [string, string])[] => {
    const [, name = "", value = ""] = /^([^=\0]+)=([^\0]*)$/.exec(line) ?? [];
    return name.trim() === "" || value.trim() === "" ? [] : [[name.trim(), value.trim()]];
  });
  return Object.fromEntries(pairs);
}
