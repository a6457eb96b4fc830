import { createHash, type Hash } from "node:crypto";
import { createReadStream } from "node:fs";
import { lstat, readdir, readlink } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "@coppice/core";
import { BuildFailure } from "../model/build-failure.js";
import type { BuildStep } from "../model/build-request.js";
import type { HostPrograms } from "../images/host-programs.js";

const PATTERN = /[*?[\\]/;

/** A COPY step with the name of an archive of its files, which changes with them; other steps as they are. @throws Error */
export async function withFiles(step: BuildStep, folder: string | undefined): Promise<BuildStep> {
  const [source] = step.args;
  if (step.type !== "COPY" || source === undefined) return step;
  if (folder === undefined) throw new Error("COPY: a recipe of the configuration has no folder to copy from");
  if (PATTERN.test(source)) throw new Error(`COPY ${source}: patterns are not supported`);
  const hash = createHash("sha256").update(JSON.stringify(step.args));
  try {
    await hashEntry(hash, folder, source);
  } catch (error) {
    throw new Error(`COPY ${source}: ${messageOf(error)}`, { cause: error });
  }
  return { ...step, filesHash: hash.digest("hex") };
}

/** All that COPY keeps of an entry and of those in it: names, kinds, permissions and contents. */
async function hashEntry(hash: Hash, folder: string, path: string): Promise<void> {
  const place = join(folder, path);
  const stats = await lstat(place);
  const entry = [path, stats.mode & 0o777];
  if (stats.isSymbolicLink()) hash.update(JSON.stringify([...entry, "link", await readlink(place)]));
  else if (stats.isDirectory()) {
    hash.update(JSON.stringify([...entry, "directory"]));
    for (const name of (await readdir(place)).toSorted()) await hashEntry(hash, folder, join(path, name));
  } else if (stats.isFile()) {
    hash.update(JSON.stringify([...entry, "file", stats.size]));
    for await (const chunk of createReadStream(place)) hash.update(chunk as Buffer);
  } else throw new Error(`${place} is no file, directory or link`);
}

/** Writes an archive of the files of a COPY step. @throws BuildFailure, the signal's reason */
export async function packFiles(
  programs: HostPrograms,
  { folder, source, path, signal }: PackedFiles,
): Promise<void> {
  const args = ["-c", "-f", path, "-C", folder, "--", source];
  const { code, output } = await programs.run("tar", { args, cwd: "/", environment: {}, signal });
  if (code !== 0)
    throw new BuildFailure(`the files of COPY ${source} cannot be packed: ${output.trim()}`, undefined);
}

export interface PackedFiles {
  readonly folder: string;
  /** Relative to the folder. */
  readonly source: string;
  /** For the archive. */
  readonly path: string;
  readonly signal: AbortSignal;
}
