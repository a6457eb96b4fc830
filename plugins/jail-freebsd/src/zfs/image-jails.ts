import { mkdir, writeFile } from "node:fs/promises";
import { join, dirname } from "node:path";
import type { FullLimits } from "@coppice/core/backend";
import { messageOf } from "@coppice/core";
import type { JailSettings } from "../jail-freebsd-config.js";
import type { NullfsMount } from "../jails/jail-conf.js";
import type { Jails, SandboxPaths } from "../jails/jails.js";
import type { ResourceRules } from "../jails/resource-rules.js";
import { HostCommandError, type Host } from "../host/host.js";

/** Of umoci, which reads one layer at a time, and of tar. */
const LIMITS: Omit<FullLimits, "diskMiB"> = { cpuCount: 2, memoryMiB: 1024, processes: 256 };

/** Jails for the files of images. They have no network, and see nothing of the host but what is mounted for them. */
export class ImageJails {
  readonly #jails: Jails;
  readonly #rules: ResourceRules | undefined;
  readonly #settings: JailSettings;

  constructor(jails: Jails, rules: ResourceRules | undefined, settings: JailSettings) {
    this.#jails = jails;
    this.#rules = rules;
    this.#settings = settings;
  }

  /** Creates a jail without processes, the directories that are mounted on, and the account that jexec(8) looks up. */
  async create(place: SandboxPaths, mounts: readonly NullfsMount[]): Promise<void> {
    for (const target of ["/dev", "/etc", ...mounts.map((mount) => mount.target)])
      await mkdir(place.root + target, { recursive: true });
    await writeFile(join(place.root, "etc/passwd"), "root:*:0:0::/:/usr/sbin/nologin\n");
    await this.#rules?.set(place.name, { ...LIMITS, diskMiB: 0 });
    await this.#jails.create(place, {
      name: place.name,
      hostname: place.name,
      root: place.root,
      devfsRuleset: this.#settings.devfsRuleset,
      procfs: false,
      sysvipc: false,
      mounts,
    });
  }

  /** Ends all processes of a jail, and removes its mounts and rules. A missing one is fine. */
  async end(place: SandboxPaths): Promise<void> {
    await this.#jails.remove(place);
    await this.#rules?.remove(place.name);
  }
}

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

interface PackOptions {
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
