import { randomBytes } from "node:crypto";
import { mkdir, readdir, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { SandboxError, MEBIBYTE } from "@coppice/core";
import {
  type ImageId,
  type ImageSource,
  imageTooLarge,
  prepareLayout,
  unpackArguments,
  unpackCpuSeconds,
  unpackFailure,
} from "@coppice/core/backend";
import type { Host } from "../host/host.js";
import { isExecutable, isThere } from "../host/host-facts.js";
import type { JailSettings } from "../jail-freebsd-config.js";
import type { SandboxPaths } from "../jails/jails.js";
import type { Datasets } from "./datasets.js";
import { type ImageJails, packFiles } from "./image-jails.js";

interface ImageDatasetsOptions {
  readonly host: Host;
  readonly datasets: Datasets;
  readonly jails: ImageJails;
  readonly settings: JailSettings;
  /** Directory on the host, accessible only to root, with what is needed while an image is unpacked or packed. */
  readonly directory: string;
}

/** Paths of an image that is being unpacked, or of a clone that is being packed. */
interface Place extends SandboxPaths {
  readonly directory: string;
  /** Mount point of the files, outside of the root of the jail. */
  readonly files: string;
  /** Layout that umoci reads, in a jail that unpacks. */
  readonly layout: string;
}

const NAME = "image-";
/** What a file system needs for itself, beside the files of an image. */
const SPARE_MIB = 16;
/** Inside the jail: the layout as it came, the one that umoci reads, and the root that it fills. */
const INSIDE = { source: "/source", layout: "/layout", files: "/image", programs: "/bin" } as const;
/** Parameters: blocks of 512 bytes of a file, seconds of processor time, and the command. */
const LIMITED = 'ulimit -c 0 && ulimit -f "$1" && ulimit -t "$2" && shift 2 && exec "$@"';
const BLOCK = 512;
/** A line of find(1) with -ls: inode, blocks, mode, links, owner, group and size. */
const LISTED = /^ *(\d+) +\d+ -\S+ +(\d+) +\S+ +\S+ +(\d+) /;

/** Root file systems of templates. Each is a dataset that has a snapshot once it is whole. */
export class ImageDatasets {
  readonly #options: ImageDatasetsOptions;
  readonly #packing = new Set<ImageId>();

  constructor(options: ImageDatasetsOptions) {
    this.#options = options;
  }

  /** @throws SandboxError image_invalid, image_too_large, template_unusable without umoci, or the signal's reason. */
  async unpack(id: ImageId, source: ImageSource, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const { datasets, settings } = this.#options;
    const { umoci } = settings.programs;
    if (!(await isExecutable(umoci))) {
      const text = `images cannot be unpacked: this host does not have the program ${umoci} (pkg install umoci)`;
      throw new SandboxError("template_unusable", text);
    }
    const place = this.#placeOf(id);
    const refquotaMiB = Math.ceil(source.maxBytes / MEBIBYTE) + SPARE_MIB;
    await datasets.create(place.name, { mountPoint: place.files, refquotaMiB });
    let ending: Promise<void> | undefined;
    // Ends umoci, whose failure then ends the rest.
    const end = (): void => {
      ending = this.#options.jails.end(place).catch(() => undefined);
    };
    signal.addEventListener("abort", end, { once: true });
    try {
      await this.#fill(place, source, signal);
      await this.#options.jails.end(place);
      await this.#measure(place, source);
      await this.#makePlaces(place);
      signal.throwIfAborted();
      await datasets.seal(place.name);
      await rm(place.directory, { recursive: true });
    } catch (error) {
      await ending;
      await this.remove(id);
      signal.throwIfAborted();
      throw error;
    } finally {
      signal.removeEventListener("abort", end);
    }
  }

  /** Makes an image of the dataset of a sandbox that has ended; all or nothing. */
  async commit(id: ImageId, { name, root }: SandboxPaths): Promise<void> {
    await this.#options.datasets.sealAs(name, nameOf(id), root);
  }

  /**
   * Packs the files of a snapshot as a tar archive. Where this process is killed, the clone that it packs is found by
   * the next one as an incomplete image.
   * @param origin `<dataset>@<snapshot>`
   * @throws SandboxError not_found for a missing snapshot, or the signal's reason.
   */
  async *pack(origin: string, signal: AbortSignal): AsyncIterable<Uint8Array> {
    signal.throwIfAborted();
    const { datasets, host, jails, settings } = this.#options;
    const id = `pack${randomBytes(8).toString("hex")}`;
    const place = this.#placeOf(id);
    this.#packing.add(id);
    try {
      await mkdir(place.directory, { mode: 0o700 });
      const clone = { origin, mountPoint: place.files, refquotaMiB: undefined, properties: {} };
      await datasets.clone(place.name, clone);
      yield* packFiles({ host, jails, settings }, place, signal);
    } finally {
      await this.remove(id).finally(() => this.#packing.delete(id));
    }
  }

  async list(): Promise<readonly ImageId[]> {
    const owned = await this.#options.datasets.owned(NAME, true);
    const names = owned.filter(({ state }) => state !== "retained").map(({ name }) => name);
    const begun = await readdir(this.#options.directory);
    const ids = [...new Set([...names, ...begun])].map((name) => name.slice(NAME.length));
    return ids.filter((id) => !this.#packing.has(id));
  }

  /** Sandboxes and images that are its clones live on. */
  async remove(id: ImageId): Promise<void> {
    const place = this.#placeOf(id);
    if (await isThere(place.directory)) await this.#options.jails.end(place);
    await this.#options.datasets.destroy(place.name);
    await rm(place.directory, { recursive: true, force: true });
  }

  async usage(id: ImageId): Promise<number> {
    const { datasets } = this.#options;
    await this.snapshotOf(id);
    return (await datasets.usedBytes([nameOf(id)], "used")).get(nameOf(id)) ?? 0;
  }

  /** The snapshot that sandboxes are cloned from, which an incomplete image lacks. @throws SandboxError not_found */
  async snapshotOf(id: ImageId): Promise<string> {
    const { datasets } = this.#options;
    const state = await datasets.stateOf(nameOf(id));
    if (state === undefined || state === "retained")
      throw new SandboxError("image_not_found", `image '${id}' not found`);
    return datasets.imageSnapshot(nameOf(id));
  }

  /** Runs umoci in a jail of its own, which sees nothing of the host but its program and libraries. */
  async #fill(place: Place, source: ImageSource, signal: AbortSignal): Promise<void> {
    const { host, jails, settings } = this.#options;
    const { programs, templateCommandTimeout: timeoutMs, unpackerLibraries } = settings;
    await prepareLayout(source, { directory: place.layout, seenAt: INSIDE.source }, signal);
    await mkdir(join(place.root, "proc/self"), { recursive: true });
    // As in a user namespace of Linux, umoci then makes an empty file in place of a device, which no jail can make.
    await writeFile(join(place.root, "proc/self/uid_map"), "0 0 65536\n");
    await jails.create(place, [
      { source: dirname(programs.umoci), target: INSIDE.programs, readOnly: true },
      ...unpackerLibraries.map((path) => ({ source: path, target: path, readOnly: true })),
      { source: source.layout, target: INSIDE.source, readOnly: true },
      { source: place.layout, target: INSIDE.layout, readOnly: true },
      { source: place.files, target: INSIDE.files, readOnly: false },
    ]);
    signal.throwIfAborted();
    const program = programs.umoci.replace(dirname(programs.umoci), INSIDE.programs);
    const limits = [Math.ceil(source.maxBytes / BLOCK), unpackCpuSeconds(source)].map(String);
    const words = [programs.jexec, place.name, program, ...unpackArguments(INSIDE.layout, INSIDE.files)];
    const run = await host.try("sh", ["-c", LIMITED, "sh", ...limits, ...words], { timeoutMs });
    signal.throwIfAborted();
    if (run.code === 0) return;
    const output = run.stdout + run.stderr;
    throw unpackFailure({ isKilled: run.code < 0, code: run.code, output }, source, /dis[ck] quota exceeded/);
  }

  /** Without it the bytes of compressed files and of holes would not count. @throws SandboxError image_too_large */
  async #measure({ files }: Place, source: ImageSource): Promise<void> {
    const linked = new Set<string>();
    let [bytes, entries] = [0, 0];
    const onLine = (line: string): void => {
      entries++;
      const [, inode = "", links, size = "0"] = LISTED.exec(line) ?? [];
      if (links !== "1" && linked.has(inode)) return;
      if (links !== "1") linked.add(inode);
      bytes += Number(size);
    };
    const { host, settings } = this.#options;
    await host.run("find", [files, "-xdev", "-ls"], { onLine, timeoutMs: settings.templateCommandTimeout });
    if (bytes > source.maxBytes || entries > source.maxEntries) throw imageTooLarge(source);
  }

  /** Makes the directories that a jail is mounted on, whatever the image has in their place. Nothing runs in it. */
  async #makePlaces({ directory, files }: Place): Promise<void> {
    const { host, settings } = this.#options;
    const root = (await host.run("realpath", [files])).trim();
    const isDirectory = async (path: string): Promise<boolean> => {
      // The dot makes a file an error.
      const found = await host.try("realpath", [`${path}/.`]);
      return found.code === 0 && found.stdout.trim() === path;
    };
    for (const target of ["/dev", "/proc", settings.agentInside]) {
      let path = root;
      for (const name of target.slice(1).split("/")) {
        path = `${path}/${name}`;
        if (await isDirectory(path)) continue;
        await host.run("rm", ["-f", path]);
        await host.run("mkdir", [path]);
      }
    }
    const resolvers = settings.network.kind === "none" ? [] : settings.network.resolvers;
    if (resolvers.length === 0 || !(await isDirectory(`${root}/etc`))) return;
    const written = join(directory, "resolv.conf");
    await writeFile(written, resolvers.map((address) => `nameserver ${address}\n`).join(""));
    // It may be a directory with files.
    await host.run("rm", ["-rf", `${root}/etc/resolv.conf`]);
    await host.run("install", ["-m", "0644", written, `${root}/etc/resolv.conf`]);
  }

  #placeOf(id: ImageId): Place {
    const name = nameOf(id);
    const directory = join(this.#options.directory, name);
    return {
      name,
      directory,
      root: join(directory, "root"),
      files: join(directory, "files"),
      layout: join(directory, "layout"),
      conf: join(directory, "jail.conf"),
      socket: "",
      helper: "",
    };
  }
}

function nameOf(id: ImageId): string {
  if (!/^[a-z0-9]+$/.test(id)) throw new Error(`'${id}' is no id of an image`);
  return `${NAME}${id}`;
}
