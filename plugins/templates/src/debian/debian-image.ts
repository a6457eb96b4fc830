import { rm, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { hostProxies } from "@coppice/core";
import { BuildFailure } from "../model/build-record.js";
import type { TemplatesConfig } from "../templates-config.js";
import { ArchiveProbe, newestSources, snapshotRelease, snapshotSources } from "./debian-archives.js";
import type { HostPrograms, HostRun } from "../images/host-programs.js";
import { type MadeImage, makeImage } from "../images/made-image.js";

interface SpaceWatch {
  readonly programs: HostPrograms;
  readonly maxBytes: number;
  /** Aborted with a BuildFailure when the directory has more, and at the end of the watch. */
  readonly ending: AbortController;
}

const WATCHED_EVERY_MS = 1_000;

/** Watches what a program writes to a directory, until it is disposed of. */
function watchSpace(directory: string, watch: SpaceWatch): AsyncDisposable {
  const watching = untilEnded(directory, watch);
  return {
    async [Symbol.asyncDispose]() {
      watch.ending.abort();
      await watching;
    },
  };
}

/** Never rejects. */
async function untilEnded(directory: string, { programs, maxBytes, ending }: SpaceWatch): Promise<void> {
  const { signal } = ending;
  try {
    let free = await freeBytes(directory);
    let used = 0;
    while (!signal.aborted) {
      await sleep(WATCHED_EVERY_MS, undefined, { signal });
      const now = await freeBytes(directory);
      // Others write as well: counting takes its time, and tells who it was.
      if (used + free - now <= maxBytes) continue;
      free = now;
      const args = ["--summarize", "--block-size=1", "--", directory];
      const { output } = await programs.run("du", { args, cwd: "/", environment: {}, signal });
      used = Number(/^(\d+)\t/m.exec(output)?.[1] ?? 0);
      if (used > maxBytes)
        ending.abort(new BuildFailure(`the packages take more than ${maxBytes} bytes`, "base"));
    }
  } catch (error) {
    ending.abort(error);
  }
}

async function freeBytes(directory: string): Promise<number> {
  const { bavail, bsize } = await statfs(directory);
  return bavail * bsize;
}

interface DebianImagesOptions {
  readonly programs: HostPrograms;
  readonly settings: Pick<TemplatesConfig, "debian" | "pins" | "images">;
  /** For layouts, which the next start removes if this server does not. */
  readonly directory: () => string;
}

export interface WantedDebian {
  readonly suite: string;
  readonly packages: readonly string[];
  /** Time whose packages are taken, `20261124T060000Z`. */
  readonly snapshot?: string | undefined;
}

interface MakeOptions extends Pick<HostRun, "signal" | "onLine"> {
  /** Takes the reason why the packages are not those of the snapshot. */
  readonly onUnpinned?: (reason: string) => void;
}

/** One run of mmdebstrap. */
interface Attempt extends Omit<MakeOptions, "onUnpinned"> {
  readonly wanted: WantedDebian;
  readonly tar: string;
  readonly directory: string;
  readonly sources: readonly string[];
  readonly hooks: readonly string[];
}

/** Sources of the packages of an image, for steps that add to them. */
const BUILD_LIST = "/etc/apt/build.list";
const SOURCES_LIST = "/etc/apt/sources.list";

/**
 * dpkg(1) need not wait for the disk after each package: a build that the host's crash ends begins anew. In the finished
 * image it waits again.
 */
const WITHOUT_WAITING = [
  "--dpkgopt=force-unsafe-io",
  `--customize-hook=rm -f "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap`,
];

/** Makes images of Debian packages with mmdebstrap. */
export class DebianImages {
  readonly #options: DebianImagesOptions;
  readonly #probe: ArchiveProbe;

  constructor(options: DebianImagesOptions) {
    this.#options = options;
    this.#probe = new ArchiveProbe(options.settings.debian.snapshotTimeout);
  }

  /** Time whose packages are taken, and whether others will not do; undefined for the newest. */
  pinOf({ snapshot }: WantedDebian): { readonly snapshot: string; readonly isRequired: boolean } | undefined {
    const { pins } = this.#options.settings;
    return snapshot === undefined || pins === "ignore"
      ? undefined
      : { snapshot, isRequired: pins === "require" };
  }

  /**
   * Equal packages of equal versions make equal images. `build.list` of an image says where they came from; its
   * `sources.list` leads to the newest ones in any case, for those who use it.
   * @param onLine takes what mmdebstrap says. @throws BuildFailure, the signal's reason
   */
  async make(wanted: WantedDebian, { signal, onLine, onUnpinned }: MakeOptions): Promise<MadeImage> {
    const { settings, directory } = this.#options;
    const pin = this.pinOf(wanted);
    return makeImage(directory(), async (tar, own) => {
      const attempt = { wanted, tar, directory: own, signal, ...(onLine && { onLine }) };
      if (pin !== undefined) {
        try {
          await this.#makePinned(attempt, pin.snapshot);
          return;
        } catch (error) {
          if (pin.isRequired || !(error instanceof DebianFailure)) throw error;
          onUnpinned?.(error.message);
          await rm(tar, { force: true });
        }
      }
      const list = `"$1"${SOURCES_LIST}`;
      const hooks = [`[ ! -e ${list} ] || cp ${list} "$1"${BUILD_LIST}`];
      await this.#run({ ...attempt, sources: settings.debian.sources, hooks });
    });
  }

  async #makePinned(attempt: Omit<Attempt, "sources" | "hooks">, snapshot: string): Promise<void> {
    const { debian } = this.#options.settings;
    const { suite } = attempt.wanted;
    const sources = snapshotSources(suite, snapshot, debian.snapshots);
    // apt would try each file of an archive that is away again and again.
    const reason = await this.#probe.whyUnreachable(snapshotRelease(suite, snapshot, debian.snapshots));
    if (reason !== undefined)
      throw new DebianFailure(`the archive of ${snapshot} (${debian.snapshots}) cannot be used: ${reason}`);
    const own = debian.sources.filter((line) => line.startsWith("deb "));
    const newest = own.length > 0 ? own : newestSources(suite);
    await writeFile(join(attempt.directory, "build.list"), textOf(sources));
    await writeFile(join(attempt.directory, "sources.list"), textOf(newest));
    const hooks = [`upload build.list ${BUILD_LIST}`, `upload sources.list ${SOURCES_LIST}`];
    try {
      await this.#run({ ...attempt, sources, hooks });
    } catch (error) {
      if (!(error instanceof DebianFailure)) throw error;
      throw new DebianFailure(`with the archive of ${snapshot} (${debian.snapshots}) ${error.message}`);
    }
  }

  async #run({ wanted, tar, directory, sources, hooks, signal, onLine }: Attempt): Promise<void> {
    const { programs, settings } = this.#options;
    const { suite, packages } = wanted;
    const { mmdebstrap, keyring } = settings.debian;
    // In a user namespace: the scripts of packages have no power over this host.
    // What apt says tells how far it is.
    const words = ["--verbose", "--mode=unshare", "--variant=minbase", "--format=tar", ...WITHOUT_WAITING];
    if (packages.length > 0) words.push(`--include=${packages.join(",")}`);
    if (keyring !== undefined) words.push(`--keyring=${keyring}`);
    words.push(...hooks.map((hook) => `--customize-hook=${hook}`));
    const ending = new AbortController();
    // The root, and the archive that is made of it.
    const maxBytes = 2 * settings.images.maxSize;
    await using _watch = watchSpace(directory, { programs, maxBytes, ending });
    const { code, output } = await programs.run(mmdebstrap, {
      args: [...words, "--", suite, tar, ...sources],
      cwd: directory,
      environment: {
        ...hostProxies(),
        // All times of the image: it is reproducible.
        SOURCE_DATE_EPOCH: "0",
        // Files of other owners, which root alone could remove if mmdebstrap did not.
        ...(process.getuid?.() === 0 && { TMPDIR: directory }),
      },
      signal: AbortSignal.any([signal, ending.signal]),
      ...(onLine && { onLine }),
    });
    if (code === 127)
      throw new BuildFailure("this server has no mmdebstrap, which its operator can install", "base");
    if (code !== 0) throw new DebianFailure(`mmdebstrap failed: ${lastError(output)}`);
  }
}

/** A failure of mmdebstrap itself: other packages may do. */
class DebianFailure extends BuildFailure {
  constructor(message: string) {
    super(message, "base");
  }
}

const textOf = (lines: readonly string[]): string => lines.map((line) => `${line}\n`).join("");

/** What a failed mmdebstrap says: its errors, else its last line. */
function lastError(output: string): string {
  const lines = output.trim().split("\n");
  const errors = lines.filter((line) => line.startsWith("E: "));
  return (errors.length > 0 ? errors.slice(-3).join("; ") : (lines.at(-1) ?? "")).slice(0, 500);
}
