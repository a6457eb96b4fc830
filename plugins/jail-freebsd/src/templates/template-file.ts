import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { readFile } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { pipeline } from "node:stream/promises";
import { messageOf, parseInput, SandboxError } from "@coppice/core";
import { parse } from "yaml";
import { z } from "zod";

/** Path inside a template. No component is `.` or `..`. */
const insidePath = z
  .string()
  .regex(/^(\/(?!\.{1,2}(\/|$))[A-Za-z0-9._@:+-]+)+$/, "expected an absolute path of plain characters");
const hostPath = z
  .string()
  .regex(/^[A-Za-z0-9._/][A-Za-z0-9._@:+/-]*$/, "expected a path of plain characters");
const packageName = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9._+-]*$/, "expected the name of a package");
const accountName = z.string().regex(/^[a-z_][a-z0-9_-]{0,31}$/, "expected the name of an account");
const mode = z.string().regex(/^[0-7]{3,4}$/, "expected an octal mode, as '0644'");

/** Contents of a file for `coppice jail-template build`. */
export const templateFile = z.strictObject({
  name: z
    .string()
    .regex(/^[a-z0-9][a-z0-9._-]{0,63}$/, "expected the name of a template, in small letters")
    .describe("Name that clients ask for"),
  base: z
    .union([
      z.strictObject({ sets: z.array(hostPath).min(1).describe("Archives of tar(1), as base.txz") }),
      z.strictObject({ packages: z.array(packageName).min(1).describe("Packages of a pkgbase system") }),
    ])
    .describe("The system"),
  packages: z.array(packageName).default([]).describe("What pkg(8) installs"),
  users: z
    .array(
      z.strictObject({
        name: accountName,
        uid: z.int().min(1000).max(65_000).optional(),
        shell: insidePath.default("/bin/sh"),
      }),
    )
    .default([{ name: "user", uid: 1000, shell: "/bin/sh" }])
    .describe("Accounts with a home"),
  directories: z
    .array(
      z.strictObject({ path: insidePath, mode: mode.default("0755"), owner: accountName.default("root") }),
    )
    .default([])
    .describe("Created in this order; the parent of each must exist"),
  files: z
    .array(
      z.strictObject({
        source: hostPath.describe("On the host, relative to this file"),
        path: insidePath.describe("In an existing directory"),
        mode: mode.default("0644"),
        owner: accountName.default("root"),
      }),
    )
    .default([])
    .describe("Copied after the packages"),
  links: z
    .array(z.strictObject({ path: insidePath, to: hostPath }))
    .default([])
    .describe("Symbolic links"),
  revision: z.string().max(100).optional().describe("Change it to fetch the same packages again"),
});

/** A template to build, with its digest. */
export interface TemplateRecipe extends z.infer<typeof templateFile> {
  /** SHA-256 of the template's contents, in hexadecimal. */
  readonly digest: string;
}

/**
 * Reads a template file, makes its paths absolute, and digests the files that it names.
 * @throws SandboxError invalid_argument with what is wrong in the file.
 */
export async function readTemplateFile(path: string): Promise<TemplateRecipe> {
  let values: unknown;
  try {
    values = parse(await readFile(path, "utf8"));
  } catch (error) {
    throw new SandboxError("template_file_invalid", `${path}: ${messageOf(error)}`);
  }
  const parsed = parseInput(templateFile, values);
  const from = (file: string) => resolve(dirname(path), file);
  const base = "sets" in parsed.base ? { sets: parsed.base.sets.map(from) } : parsed.base;
  const files = parsed.files.map((file) => ({ ...file, source: from(file.source) }));
  const recipe = { ...parsed, base, files };
  return { ...recipe, digest: await digestOf(recipe) };
}

/** Covers the contents of files, not their names and places, and ignores the order of packages. */
async function digestOf(recipe: z.infer<typeof templateFile>): Promise<string> {
  const { base, files, packages, ...rest } = recipe;
  const inputs = {
    version: 1,
    base: "sets" in base ? await Promise.all(base.sets.map(digestOfFile)) : base.packages.toSorted(),
    packages: packages.toSorted(),
    files: await Promise.all(
      files.map(async ({ source, ...file }) => ({ ...file, content: await digestOfFile(source) })),
    ),
    ...rest,
  };
  return createHash("sha256").update(JSON.stringify(inputs)).digest("hex");
}

async function digestOfFile(path: string): Promise<string> {
  const digest = createHash("sha256");
  try {
    await pipeline(createReadStream(path), digest);
  } catch (error) {
    throw new SandboxError("template_file_invalid", messageOf(error));
  }
  return digest.digest("hex");
}
