import { BuildFailure } from "../model/build-failure.js";
import type { HostPrograms } from "./host-programs.js";
import { makeImage, type MadeImage } from "./made-image.js";

export interface DirectoryImageOptions {
  readonly programs: HostPrograms;
  /** For layouts, as for `makeImage`. */
  readonly parent: string;
  /** Absolute path of a root file system on this host, which is read alone. */
  readonly path: string;
  readonly signal: AbortSignal;
}

/** Equal files of equal times make equal archives. */
const WORDS = [
  "--create",
  "--sort=name",
  "--format=posix",
  "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
  "--numeric-owner",
  "--one-file-system",
  "--xattrs",
  "--xattrs-include=security.capability",
];

/** Copies a directory into an image. @throws BuildFailure, the signal's reason */
export async function imageOfDirectory(options: DirectoryImageOptions): Promise<MadeImage> {
  const { programs, parent, path, signal } = options;
  return makeImage(parent, async (tar) => {
    const args = [...WORDS, `--file=${tar}`, `--directory=${path}`, "."];
    const { code, output } = await programs.run("tar", { args, cwd: "/", environment: {}, signal });
    if (code !== 0)
      throw new BuildFailure(`directory '${path}' cannot be copied: ${output.trim().slice(-500)}`, "base");
  });
}
