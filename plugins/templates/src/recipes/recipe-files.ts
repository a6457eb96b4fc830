import { messageOf } from "@coppice/core";
import type { BuildStep } from "../model/build-request.js";
import { findFiles, readIgnored } from "../uploads/folder-files.js";
import { type FilesToPack, hashFolder, packFolder } from "../uploads/pack-folder.js";

/** A COPY step with the name of an archive of its files, which changes with them; other steps as they are. @throws Error */
export async function withFiles(step: BuildStep, folder: string | undefined): Promise<BuildStep> {
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
