import { createHash } from "node:crypto";
import { readFile, stat } from "node:fs/promises";
import { dirname, extname, resolve } from "node:path";
import { messageOf, type Templates } from "@coppice/core";
import { parse } from "yaml";
import { z } from "zod";
import { ARCHITECTURE } from "../images/host-programs.js";
import type { BuildBase, BuildStep, Lock } from "../model/build-request.js";
import { type ContentsLock, parseLock } from "../model/contents-lock.js";
import { type Pins, type RecipeSettings, recipeSettings } from "../templates-config.js";
import { asInDocker, type ParsedDockerfile, parseDockerfile } from "./dockerfile.js";
import { type FilesToPack, findFiles, hashFolder, packFolder, readIgnored } from "../uploads/folder-files.js";

/** A COPY step with the name of an archive of its files, which changes with them; other steps as they are. @throws Error */
async function withFiles(step: BuildStep, folder: string | undefined): Promise<BuildStep> {
  if (step.type !== "COPY") return step;
  if (folder === undefined) throw new Error("COPY: a recipe of the configuration has no folder to copy from");
  try {
    return { ...step, filesHash: await hashFolder(await filesOf(step, folder)) };
  } catch (error) {
    throw new Error(`COPY ${step.args[0]}: ${messageOf(error)}`, { cause: error });
  }
}

/** Writes the archive of a COPY step. @throws Error, the signal's reason */
export async function packFiles(
  { step, folder, path }: { readonly step: BuildStep; readonly folder: string; readonly path: string },
  signal: AbortSignal,
): Promise<void> {
  await packFolder(await filesOf(step, folder), path, signal);
}

async function filesOf({ args }: BuildStep, folder: string): Promise<FilesToPack> {
  const [source = ""] = args;
  const files = await findFiles(folder, source, await readIgnored(folder));
  if (files.length === 0) throw new Error("the folder has no such file");
  // Times of a checkout are no part of a recipe.
  return { folder, files: files.map((file) => ({ ...file, modifiedAt: new Date(0) })), of: args };
}

/** Counts changes of what a recipe is built to. */
const VERSION = 2;

/** How a build tells that it differs from the lock file. */
const SEVERITIES = { prefer: "warn", require: "error", ignore: "info" } as const;

export interface Recipe {
  /** Absolute path of its file; undefined for one in the configuration itself. */
  readonly path: string | undefined;
  readonly base: BuildBase;
  /** Of the files that COPY steps name; undefined for a recipe in the configuration itself. */
  readonly folder: string | undefined;
  readonly steps: readonly BuildStep[];
  readonly startCommand: string | undefined;
  readonly readyCommand: string | undefined;
  /** Undefined without a lock file for the architecture of this host. */
  readonly lock: Lock | undefined;
  /** Of all that it says, in hexadecimal digits: equal recipes build equal templates. */
  readonly digest: string;
}

/**
 * Reads all recipes of the configuration.
 * @throws Error that names the recipe, also for one of no template.
 */
export async function readRecipes(
  settings: Readonly<Record<string, string | RecipeSettings>>,
  { templates, pins }: { readonly templates: Pick<Templates, "all">; readonly pins: Pins },
): Promise<ReadonlyMap<string, Recipe>> {
  const known = new Set(templates.all().map(({ name }) => name));
  const recipes = new Map<string, Recipe>();
  for (const [name, setting] of Object.entries(settings)) {
    if (!known.has(name))
      throw new Error(`recipes.${name}: sandboxes.templates has no template of that name`);
    try {
      recipes.set(name, await readRecipe(setting, pins));
    } catch (error) {
      throw new Error(`recipes.${name}: ${messageOf(error)}`, { cause: error });
    }
  }
  return recipes;
}

/** @param setting a recipe, or the path of a YAML file with one. @throws Error with the place of a mistake. */
export async function readRecipe(setting: string | RecipeSettings, pins: Pins = "ignore"): Promise<Recipe> {
  const settings = typeof setting === "string" ? await readSettings(setting) : setting;
  const { from, start, ready } = settings;
  const own = typeof setting === "string" ? dirname(resolve(setting)) : undefined;
  const {
    base,
    folder,
    steps: parsed,
    startCommand,
  } = "dockerfile" in from
    ? await readDockerfile(resolve(own ?? ".", from.dockerfile), settings)
    : { base: await baseOf(from, own), folder: own, ...readSteps(settings) };
  const steps = await Promise.all(parsed.map((step) => withFiles(step, folder)));
  const locked = typeof setting === "string" ? await readLock(lockOf(setting)) : undefined;
  const lock = locked?.architecture === ARCHITECTURE ? locked : undefined;
  // Settings that decide what is built.
  const isPinned = base.kind === "debian" && base.snapshot !== undefined && pins !== "ignore";
  const pinning = [isPinned && pins, pins === "require" && lock !== undefined && lock.contents];
  return {
    path: typeof setting === "string" ? resolve(setting) : undefined,
    base,
    folder,
    steps,
    startCommand: start ?? startCommand,
    readyCommand: ready,
    lock: lock && { contents: lock.contents, severity: SEVERITIES[pins] },
    digest: createHash("sha256")
      .update(JSON.stringify([VERSION, settings, base, steps, pinning]))
      .digest("hex"),
  };
}

/** Path of the lock file of a recipe. */
export function lockOf(recipe: string): string {
  return `${withoutExtension(recipe)}.lock`;
}

/** Digits of a digest that the name of an image has. */
const IMAGE_DIGITS = 16;

/**
 * Path of the OCI image layout of a recipe that was built elsewhere. It is named by what it was built of: one of a recipe
 * that has changed since stands for nothing.
 * @param digest of the recipe and of those below it.
 */
export function builtImageOf(recipe: string, digest: string): string {
  return `${withoutExtension(recipe)}.${digest.slice(0, IMAGE_DIGITS)}.image`;
}

function withoutExtension(path: string): string {
  return path.slice(0, path.length - extname(path).length);
}

/** @returns undefined without a file. @throws Error with the place of a mistake */
export async function readLock(path: string): Promise<ContentsLock | undefined> {
  try {
    return parseLock(await readFile(path, "utf8"));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw new Error(`${path}: ${messageOf(error)}`, { cause: error });
  }
}

async function readSettings(path: string): Promise<RecipeSettings> {
  try {
    return recipeSettings.parse(parse(await readFile(path, "utf8")));
  } catch (error) {
    const reason = error instanceof z.ZodError ? z.prettifyError(error) : messageOf(error);
    throw new Error(`${path}: ${reason}`, { cause: error });
  }
}

function readSteps({ steps: text }: RecipeSettings): Omit<ParsedDockerfile, "image"> {
  const { image, ...parsed } = parseDockerfile(text);
  if (image !== undefined) throw new Error("FROM: the recipe itself says what it starts from");
  return parsed;
}

async function readDockerfile(path: string, { steps: more }: RecipeSettings) {
  if (more !== "") throw new Error("steps: with a Dockerfile, they are in it");
  const { image, steps, startCommand } = parseDockerfile(await readFile(path, "utf8"));
  if (image === undefined) throw new Error(`${path}: it has no FROM`);
  const base: BuildBase = { kind: "image", reference: image, credentials: undefined };
  return { base, folder: dirname(path), steps: asInDocker(steps), startCommand };
}

async function baseOf(
  from: Exclude<RecipeSettings["from"], { readonly dockerfile: string }>,
  folder = ".",
): Promise<BuildBase> {
  if ("image" in from) return { kind: "image", reference: from.image, credentials: undefined };
  if ("debian" in from) return { kind: "debian", ...from.debian };
  if ("template" in from) return { kind: "template", reference: from.template };
  const path = resolve(folder, from.directory);
  const stats = await stat(path);
  if (!stats.isDirectory()) throw new Error(`${path} is no directory`);
  return { kind: "directory", path, modifiedAtMs: stats.mtimeMs };
}
