import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { mock } from "node:test";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { readFileSync, writeFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { type Logger, newId, parseTemplateReference, SandboxError, systemClock } from "@coppice/core";
import { Backends, type SandboxBackend } from "@coppice/core/backend";
import {
  type LayerBlob,
  openTestRegistry,
  smallRoot,
  startTestServer,
  tarArchive,
  type TarEntry,
  type TestRegistry,
  WITHOUT_SMALL_ROOT,
  writeImageLayout,
} from "@coppice/core/testing";
import linuxNamespaces from "@coppice/plugin-linux-namespaces";
import { ImageBuilder } from "../builds/image-builder.js";
import { runScript } from "../guest/guest-run.js";
import { HostPrograms } from "../images/host-programs.js";
import { DebianImages } from "../debian/debian-image.js";
import { ImagePuller } from "../images/image-puller.js";
import type { BuildResult, Layer, Layers } from "../model/layer.js";
import type { LogEntry } from "../model/build-record.js";
import type { BuildRequest, BuildStep } from "../model/build-request.js";
import type { BuildSurroundings, SourceBuild } from "../model/builder.js";
import { templatesConfig } from "../templates-config.js";
import { missingPrograms } from "./missing-programs.js";

/** Reason why nothing can be built here; false when it can. */
export const WITHOUT_BUILDS: string | false =
  process.platform !== "linux"
    ? "it needs Linux"
    : process.getuid?.() !== 0
      ? "it needs root"
      : WITHOUT_SMALL_ROOT || missingPrograms("skopeo", "umoci");

/** `["RUN", "true"]`, with the name of an upload after its arguments for COPY. */
export type Step = readonly [type: string, ...args: string[]] | BuildStep;

export interface Wanted extends Partial<Omit<BuildRequest, "steps">> {
  readonly steps?: readonly Step[];
  readonly signal?: AbortSignal;
  readonly onLine?: (line: string) => void;
}

export interface Built {
  readonly result: BuildResult;
  /** Lines of the log from `info` on, without the keys of layers. */
  readonly lines: readonly string[];
  readonly entries: readonly Omit<LogEntry, "atMs">[];
}

/** A builder with a backend, a registry and a cache. */
export class BuildHost implements AsyncDisposable {
  readonly layers: Layer[] = [];
  /** Packages by image. */
  readonly contents = new Map<string, readonly string[]>();
  readonly templates = new Map<string, SourceBuild>();
  readonly #parts: Awaited<ReturnType<typeof openParts>>;
  readonly #uploads = new Map<string, string>();
  readonly #named = new Set<string>();
  #builds = 0;

  private constructor(parts: Awaited<ReturnType<typeof openParts>>) {
    this.#parts = parts;
  }

  static async open(
    settings: {
      readonly builds?: object;
      readonly images?: object;
      readonly debian?: object;
      readonly pins?: string;
    } = {},
  ): Promise<BuildHost> {
    return new BuildHost(await openParts(settings));
  }

  get registry(): TestRegistry {
    return this.#parts.registry;
  }

  /** Directory with everything of this host. */
  get directory(): string {
    return this.#parts.directory;
  }

  get backend(): SandboxBackend {
    return this.#parts.backend;
  }

  /** Reference of an image with `smallRoot` and the variable `OF_IMAGE`. */
  get image(): string {
    return `${this.registry.address}/small:1`;
  }

  /** Adds an image that has these files above `smallRoot`, unless they are all. @returns its reference */
  async addImage(
    name: string,
    files: readonly TarEntry[] | LayerBlob,
    {
      isWhole = false,
      config = {},
      above = [],
    }: { readonly isWhole?: boolean; readonly config?: object; readonly above?: readonly LayerBlob[] } = {},
  ): Promise<string> {
    const layout = join(this.#parts.directory, name);
    await writeImageLayout(layout, { layers: [...(isWhole ? [] : [smallRoot()]), files, ...above], config });
    this.registry.add(`${name}:1`, layout);
    return `${this.registry.address}/${name}:1`;
  }

  /** Keeps an archive as if a client had uploaded it. @returns its hash */
  upload(archive: readonly TarEntry[] | Buffer, { gzip = true } = {}): string {
    const tar = Buffer.isBuffer(archive) ? archive : tarArchive(archive);
    const hash = createHash("sha256").update(tar).digest("hex");
    const path = join(this.#parts.directory, hash);
    writeFileSync(path, gzip ? gzipSync(tar) : tar);
    this.#uploads.set(hash, path);
    return hash;
  }

  /** Breaks the second half of an upload. */
  damage(hash: string): void {
    const path = this.#uploads.get(hash) ?? "";
    const content = readFileSync(path);
    writeFileSync(path, content.fill(0, Math.floor(content.length / 2)));
  }

  async build({
    steps = [],
    signal = new AbortController().signal,
    onLine,
    ...wanted
  }: Wanted = {}): Promise<Built> {
    const { entries, run } = this.start({ steps, signal, ...(onLine && { onLine }), ...wanted });
    const result = await run;
    const lines = entries.filter(({ level }) => level !== "debug").map(({ message }) => withoutKey(message));
    return { result, lines, entries };
  }

  /** As `build`, for one that may fail. */
  start({ steps = [], signal = new AbortController().signal, onLine, ...wanted }: Wanted): {
    readonly entries: readonly Omit<LogEntry, "atMs">[];
    readonly run: Promise<BuildResult>;
  } {
    this.#builds += 1;
    const entries: Omit<LogEntry, "atMs">[] = [];
    const request: BuildRequest = {
      templateId: "template1",
      buildId: `00000000-0000-0000-0000-${String(this.#builds).padStart(12, "0")}`,
      tenant: "tenant",
      backend: this.backend.name,
      limits: {},
      base: { kind: "image", reference: this.image, credentials: undefined },
      force: false,
      isReproducible: false,
      startCommand: undefined,
      readyCommand: undefined,
      ...wanted,
      steps: steps.map(stepOf),
    };
    const surroundings: BuildSurroundings = {
      signal,
      log: (entry) => {
        entries.push(entry);
        onLine?.(entry.message);
      },
      layers: this.#layers(),
      findTemplate: (reference) => {
        const found = this.templates.get(parseTemplateReference(reference).name);
        if (found === undefined)
          throw new SandboxError("template_not_found", `template '${reference}' not found`);
        return found;
      },
      findUpload: (hash) => this.#uploads.get(hash),
    };
    return { entries, run: this.#parts.builder.build(request, surroundings) };
  }

  /** Output of a script that root runs in a sandbox of a build. */
  async run({ image }: Pick<BuildResult, "image">, script: string): Promise<string> {
    const signal = AbortSignal.timeout(30_000);
    const sandbox = await this.backend.provision(
      {
        id: newId("sandbox"),
        template: "t",
        image: { id: image, user: "root" },
        limits: {},
        allowInternetAccess: false,
      },
      signal,
    );
    try {
      const { stdout, stderr } = await runScript(sandbox, script, { args: [], signal });
      return stdout + stderr;
    } finally {
      await sandbox.destroy();
    }
  }

  /** Counts sandboxes that are made from now on. */
  watchProvisions(): { readonly mock: { callCount(): number; restore(): void } } {
    return mock.method(this.backend, "provision");
  }

  /** Sandboxes, files of pulls, and images that no layer has. */
  async leftovers(): Promise<readonly string[]> {
    const { backend, listLeft } = this.#parts;
    const images = (await backend.images?.list()) ?? [];
    return [
      ...(await listLeft()),
      ...images.filter((image) => !this.layers.some((layer) => layer.image === image)),
    ];
  }

  #layers(): Layers {
    return {
      find: ({ key, tenant, backend }) =>
        this.layers.findLast(
          (layer) => layer.key === key && layer.tenant === tenant && layer.backend === backend,
        ),
      add: (layer) => void this.layers.push(layer),
      describe: (image, contents) => void this.contents.set(image, contents),
      nameImage: () => {
        const id = newId("image");
        this.#named.add(id);
        return id;
      },
      measured: () => {},
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const image of this.#named) await this.backend.images?.remove(image);
    await this.#parts.close();
  }
}

async function openParts(settings: {
  readonly builds?: object;
  readonly images?: object;
  readonly debian?: object;
  readonly pins?: string;
}) {
  const directory = await mkdtemp(join(tmpdir(), "coppice-builds-"));
  const sandboxes = join(directory, "namespaces");
  const pulls = join(directory, "pulls");
  const server = await startTestServer({ plugins: [[linuxNamespaces, { directory: sandboxes }]] });
  const registry = await openTestRegistry();
  const layout = join(directory, "small");
  await writeImageLayout(layout, {
    layers: [smallRoot()],
    config: { Env: ["OF_IMAGE=yes"], User: "nobody", WorkingDir: "/var" },
  });
  registry.add("small:1", layout);
  const reach = { private: [registry.address], insecure: [registry.address] };
  const config = templatesConfig.parse({
    registries: reach,
    ...settings,
    // Not what this machine trusts: builds are the same on all.
    builds: { certificates: "none", ...settings.builds },
  });
  const programs = new HostPrograms();
  const puller = new ImagePuller({ programs, settings: config, directory: () => pulls });
  await puller.clear();
  const debian = new DebianImages({ programs, settings: config, directory: () => pulls });
  const backends = server.resolve(Backends);
  const log = { warn: fail, error: fail } as unknown as Logger;
  const builder = new ImageBuilder({
    backends,
    programs,
    puller,
    debian,
    layouts: () => pulls,
    settings: config,
    clock: systemClock,
    log,
  });
  return {
    directory,
    registry,
    builder,
    backend: backends.get("linux-namespaces"),
    listLeft: async () => [...(await readdir(join(sandboxes, "sandboxes"))), ...(await readdir(pulls))],
    close: async () => {
      await registry[Symbol.asyncDispose]();
      await programs.close();
      await server.stop();
      await rm(directory, { recursive: true });
    },
  };
}

function stepOf(step: Step): BuildStep {
  if (!Array.isArray(step)) return step as BuildStep;
  const [type = "", ...args] = step as readonly string[];
  const hash = args.at(-1);
  const isUpload = /^(COPY|ADD)$/i.test(type) && hash !== undefined && /^[0-9a-f]{64}$/.test(hash);
  return {
    type,
    args: isUpload ? args.slice(0, -1) : args,
    filesHash: isUpload ? hash : undefined,
    force: false,
  };
}

function withoutKey(message: string): string {
  return message.replace(/ \[[0-9a-f]{64}\]$/, "");
}

/** What an operator would be told is a failure of a test. */
function fail(fields: object, message: string): never {
  throw new Error(message, { cause: fields });
}
