import { mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { messageOf } from "@coppice/core";
import { HostCommandError, type Host } from "../host/host.js";
import type { JailSettings } from "../jail-freebsd-config.js";
import type { SandboxPaths } from "../jails/sandbox-paths.js";
import type { ImageJails } from "./image-jails.js";

/** Inside the jail: the files, and the directory with the list of their names. */
const INSIDE = { files: "/image", list: "/list" } as const;
/** Blocks of 512 bytes: 256 MiB, of the list of names and of each temporary file of sort(1). */
const MOST_LIST_BLOCKS = 524_288;
/**
 * Parameters: blocks of a file, the files, the directory of the list, and the paths of find, sort and tar.
 *
 * The same files give the same bytes: readdir(2) has an order of its own in each dataset, and extended headers of pax
 * would have times of access and of changes of the inode, so it is a list in order and GNU's format. Their price is the
 * fraction of seconds and extended attributes. tar(1) cannot archive sockets. Each name begins with `./`, so none is an
 * option, and `--null` keeps tar from reading `-C` as one.
 */
const PACK = [
  'ulimit -c 0 && ulimit -f "$1" && cd "$2"',
  '"$4" . -xdev ! -type s -print0 > "$3/names"',
  '"$5" -z -T "$3" -o "$3/sorted" "$3/names"',
  'exec "$6" -c -f - -n --null -T "$3/sorted" --numeric-owner --format gnutar',
].join(" && ");

export interface PackOptions {
  readonly host: Host;
  readonly jails: ImageJails;
  readonly settings: JailSettings;
}

/**
 * Packs files by tar(1) in a jail of its own, which the caller ends.
 * @param place `files` mount point of the files, which are mounted read-only.
 * @throws SandboxError backend_timeout, or the signal's reason.
 */
export async function* packFiles(
  { host, jails, settings }: PackOptions,
  place: SandboxPaths & { readonly directory: string; readonly files: string },
  signal: AbortSignal,
): AsyncIterable<Uint8Array> {
  const { programs, templateCommandTimeout: timeoutMs, unpackerLibraries } = settings;
  const { find, sh, sort, tar } = programs;
  const list = join(place.directory, "list");
  await mkdir(list);
  const seen = new Set([...[sh, find, sort, tar].map((path) => dirname(path)), ...unpackerLibraries]);
  signal.throwIfAborted();
  await jails.create(place, [
    ...[...seen].map((path) => ({ source: path, target: path, readOnly: true })),
    { source: place.files, target: INSIDE.files, readOnly: true },
    { source: list, target: INSIDE.list, readOnly: false },
  ]);
  const words = [String(MOST_LIST_BLOCKS), INSIDE.files, INSIDE.list, find, sort, tar];
  try {
    const args = [place.name, sh, "-c", PACK, "sh", ...words];
    yield* host.stream("jexec", args, { signal, timeoutMs });
  } catch (error) {
    if (!(error instanceof HostCommandError)) throw error;
    throw new Error(`the files were not packed: ${messageOf(error)}`, { cause: error });
  }
}
