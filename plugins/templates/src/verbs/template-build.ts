import { mkdtemp, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ignoring, messageOf, SandboxError, type VerbAction } from "@coppice/core";
import { CACHE_OPTION, CPU_OPTION, MEMORY_OPTION, requestOf, URL_OPTION } from "../client/build-options.js";
import { findFiles, packFolder, readIgnored } from "../uploads/folder-files.js";
import { type BuildTarget, runBuild, uploadArchive } from "../client/run-build.js";
import type { BuildBase } from "../model/build-request.js";
import { asInDocker, parseDockerfile } from "../recipes/dockerfile.js";
import { readRecipe, type Recipe } from "../recipes/recipe.js";
import type { TemplatesConfig } from "../templates-config.js";

/** What a folder or a recipe says. */
type Source = Omit<Recipe, "path" | "digest" | "lock">;

/** Names of a folder's Dockerfile, the first one that there is. */
const DOCKERFILES = ["e2b.Dockerfile", "Dockerfile"];

/** Builds a template of a folder with a Dockerfile, or of a recipe, on a running server. */
export const templateBuild: VerbAction<TemplatesConfig> = (command, context) =>
  command
    .description("builds a template of a folder with a Dockerfile, or of a recipe, on a running server")
    .argument("<name[:tag]>")
    .argument("<folder or recipe.yaml>")
    .option("--file <file>", "the Dockerfile")
    .option("--start-cmd <command>", "what each sandbox starts with")
    .option("--ready-cmd <command>", "what tells that it is ready")
    .option(...CPU_OPTION)
    .option(...MEMORY_OPTION)
    .option(...CACHE_OPTION)
    .option(...URL_OPTION)
    .addHelpText(
      "after",
      "\nExamples:\n  coppice template build coppice.yaml my-app:v1 ./my-app\n  coppice template build coppice.yaml web recipe.yaml",
    )
    .action(async (name, path, values) => {
      const request = requestOf(name, values);
      const source = await readSource(path, values.file).catch((error: unknown) => {
        throw new SandboxError("template_unusable", messageOf(error), { cause: error });
      });
      const code = await runBuild(context.server(values), context, {
        request,
        prepare: async (target) => ({
          ...bodyOf(source.base),
          steps: await withArchives(source, target),
          startCmd: values.startCmd ?? source.startCommand,
          readyCmd: values.readyCmd ?? source.readyCommand,
          force: !values.cache,
        }),
      });
      context.exit(code);
    });

async function readSource(path: string, file: string | undefined): Promise<Source> {
  if (!(await stat(path)).isDirectory()) return readRecipe(path);
  const { image, steps, startCommand } = parseDockerfile(await readDockerfile(path, file));
  if (image === undefined) throw new Error("the Dockerfile has no FROM");
  return {
    folder: path,
    base: { kind: "image", reference: image, credentials: undefined },
    steps: asInDocker(steps),
    startCommand,
    readyCommand: undefined,
  };
}

async function readDockerfile(folder: string, file: string | undefined): Promise<string> {
  if (file !== undefined) return readFile(file, "utf8");
  for (const name of DOCKERFILES) {
    const text = await readFile(join(folder, name), "utf8").catch(ignoring("ENOENT"));
    if (text !== undefined) return text;
  }
  throw new Error(`${folder} has no ${DOCKERFILES.join(" and no ")}`);
}

function bodyOf(base: BuildBase): object {
  switch (base.kind) {
    case "image":
      return { fromImage: base.reference };
    case "template":
      return { fromTemplate: base.reference };
    case "debian":
      return { fromDebian: { suite: base.suite, packages: base.packages, snapshot: base.snapshot } };
    case "directory":
    case "layout":
      throw new SandboxError(
        "template_unusable",
        "only the configuration of a server can name a directory of its host",
      );
  }
}

/** The steps with the archives that they need, which are uploaded. */
async function withArchives({ folder, steps }: Source, target: BuildTarget): Promise<readonly object[]> {
  if (folder === undefined) return steps;
  const ignored = await readIgnored(folder);
  const directory = await mkdtemp(join(tmpdir(), "coppice-copy-"));
  try {
    const made: object[] = [];
    for (const step of steps) {
      if (step.type !== "COPY") {
        made.push(step);
        continue;
      }
      const [source = ""] = step.args;
      const files = await findFiles(folder, source, ignored);
      if (files.length === 0)
        throw new SandboxError("template_unusable", `COPY: the folder has no '${source}'`);
      const archive = join(directory, "files.tar.gz");
      const packed = await packFolder({ folder, files, of: step.args }, archive, target.signal);
      await uploadArchive(target, packed);
      made.push({ ...step, filesHash: packed.hash });
    }
    return made;
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}
