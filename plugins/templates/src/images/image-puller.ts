import { randomUUID } from "node:crypto";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { messageOf, Semaphore, type Tenants } from "@coppice/core";
import { BuildFailure } from "../model/build-record.js";
import { copyByGate, hostFailure } from "./skopeo-copy.js";
import { LABEL, type PushedTemplate, readPushedTemplate } from "../model/pushed-template.js";
import type { RegistryCredentials } from "../model/build-request.js";
import type { TransferReport } from "../model/builder.js";
import type { TemplatesConfig } from "../templates-config.js";
import { ARCHITECTURE, type HostPrograms } from "./host-programs.js";
import { type ImageReference, isDigest, parseImageReference } from "./image-reference.js";
import { RegistryAccess, RegistryRefused, type RegistrySettings } from "./registry-access.js";
import { type JsonLimits, readJson, RegistryClient } from "./registry-client.js";
import { type Manifest, openRegistryGate, readManifest } from "./registry-gate.js";
import { loginOf } from "./registry-login.js";
import { LAYOUT_NAME as NAME } from "./write-layout.js";
import { createReadStream } from "node:fs";
import { z } from "zod";

/** Takes a line about a pull. */
export type PullLog = (line: string) => void;

export interface WantedImage {
  /** As the client wrote it. */
  readonly reference: string;
  readonly credentials: RegistryCredentials | undefined;
  /** Whose turn it takes; none's when absent. */
  readonly tenant?: string;
}

/** An image of a registry whose version is known, and which nothing was fetched of yet. */
export interface RemoteImage extends Disposable {
  /** Of its manifest, or of the list of its platforms' manifests. */
  readonly digest: string;
  /** @throws BuildFailure, the signal's reason */
  pull(log: PullLog, report?: TransferReport): Promise<PulledImage>;
}

/** An image in an OCI image layout. */
export interface LayoutImage {
  readonly layout: string;
  /** Name of the image in the layout. */
  readonly reference: string;
  readonly environment: Readonly<Record<string, string>>;
  /** The template that was pushed as this image. */
  readonly template?: PushedTemplate | undefined;
}

/** An image whose layout is removed when this is disposed of. */
export interface PulledImage extends LayoutImage, AsyncDisposable {}

export interface ImagePullerOptions {
  readonly programs: HostPrograms;
  readonly settings: Pick<TemplatesConfig, "images"> & { readonly registries: RegistrySettings };
  /** Who shares the turns. */
  readonly tenants?: Tenants;
  /** For layouts. Nobody else uses it. */
  readonly directory: () => string;
  /** Of the server by default. */
  readonly environment?: NodeJS.ProcessEnv;
}

/** Pulls images with skopeo. */
export class ImagePuller {
  readonly #options: ImagePullerOptions;
  readonly #access: RegistryAccess;
  readonly #turns: Semaphore;

  constructor(options: ImagePullerOptions) {
    this.#options = options;
    this.#access = new RegistryAccess(options.settings.registries, options.environment);
    const { settings, tenants } = options;
    this.#turns = new Semaphore(settings.images.maxConcurrentPulls, tenants && { tenants });
  }

  /** Removes what earlier servers left. */
  async clear(): Promise<void> {
    const directory = this.#options.directory();
    await rm(directory, { recursive: true, force: true });
    await mkdir(directory, { mode: 0o700 });
  }

  /** Finds an image in its registry. @throws BuildFailure, the signal's reason */
  async find(
    { reference: text, credentials, tenant }: WantedImage,
    signal: AbortSignal,
  ): Promise<RemoteImage> {
    const reference = parseImageReference(text);
    const login = await loginOf(credentials, { proxy: this.#access.proxy, signal });
    const client = new RegistryClient({
      access: this.#access,
      repository: refusing(reference, () =>
        this.#access.find(reference, { hasCredentials: login !== undefined }),
      ),
      login,
      settings: this.#options.settings.images,
      signal,
    });
    try {
      const manifest = await this.#manifestOf(reference, client);
      return {
        digest: manifest.digest,
        pull: (log, report) =>
          this.#turns.run(
            () => this.#pull(reference, { client, manifest, log, report, signal }),
            signal,
            tenant,
          ),
        [Symbol.dispose]: () => client[Symbol.dispose](),
      };
    } catch (error) {
      client[Symbol.dispose]();
      signal.throwIfAborted();
      throw failureOf(reference, error);
    }
  }

  async #manifestOf(reference: ImageReference, client: RegistryClient): Promise<Manifest> {
    const { version, text } = reference;
    const answer = await client.get(`manifests/${version}`);
    if (answer.statusCode === 200) {
      const { maxMetadata } = this.#options.settings.images;
      return readManifest(answer, isDigest(version) ? version : undefined, maxMetadata);
    }
    answer.destroy();
    switch (answer.statusCode) {
      case 401:
        throw new BuildFailure(
          `access denied to '${text}': authentication required or insufficient permissions`,
          "base",
        );
      case 403:
        throw new BuildFailure(`access denied to '${text}': no permission to pull this image`, "base");
      case 404:
        throw new BuildFailure(
          `image '${text}' not found: the image or tag does not exist in the registry`,
          "base",
        );
      case 429:
        throw new Error("its registry limits requests; try again later");
      default:
        throw new Error(`its registry answered ${answer.statusCode}`);
    }
  }

  async #pull(
    reference: ImageReference,
    {
      client,
      manifest,
      log,
      report,
      signal,
    }: {
      readonly client: RegistryClient;
      readonly manifest: Manifest;
      readonly log: PullLog;
      readonly report: TransferReport | undefined;
      readonly signal: AbortSignal;
    },
  ): Promise<PulledImage> {
    const { maxDownload, maxLayers, maxMetadata, maxValues } = this.#options.settings.images;
    const directory = join(this.#options.directory(), randomUUID());
    const remove = async (): Promise<void> => rm(directory, { recursive: true, force: true });
    try {
      await mkdir(directory, { mode: 0o700 });
      await using gate = await openRegistryGate({
        client,
        manifest,
        maxBytes: maxDownload,
        maxLayers,
        maxMetadata,
        maxValues,
        onBytes: (done, total) => report?.({ phase: "pulling", done, total }),
        onLayer: (digest, bytes) => log(`Pulling ${digest.slice(0, 19)} (${sizeText(bytes)})`),
      });
      const { programs, settings } = this.#options;
      const problem = await copyByGate(gate, {
        programs,
        skopeo: settings.images.skopeo,
        directory,
        from: `@${manifest.digest}`,
        maxBytes: maxDownload,
        signal,
      });
      if (problem !== undefined) throw gate.refusal ?? new Error(problem);
      const image = await readLayout(join(directory, NAME), { maxMetadata, maxValues });
      return { ...image, [Symbol.asyncDispose]: remove };
    } catch (error) {
      await remove();
      signal.throwIfAborted();
      throw failureOf(reference, error);
    }
  }
}

function refusing<T>(reference: ImageReference, run: () => T): T {
  try {
    return run();
  } catch (error) {
    throw failureOf(reference, error);
  }
}

/** The failure of a pull, for its client: whatever fails beside the host's files is of the registry or its image. */
function failureOf({ text }: ImageReference, error: unknown): Error {
  if (error instanceof BuildFailure) return error;
  const ofHost = hostFailure(error);
  if (ofHost !== undefined) return ofHost;
  const reason = error instanceof RegistryRefused ? error.message : messageOf(error);
  return new BuildFailure(`failed to pull image '${text}': ${reason}`, "base", { cause: error });
}

function sizeText(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

const descriptor = z.object({ digest: z.string().regex(/^sha256:[0-9a-f]{64}$/) });
const index = z.object({ manifests: z.tuple([descriptor]) });
const manifest = z.object({ config: descriptor });
const imageConfig = z.object({
  architecture: z.string().optional(),
  config: z
    .object({
      Env: z.array(z.string()).nullish(),
      Labels: z.object({ [LABEL]: z.string().optional() }).nullish(),
    })
    .nullish(),
});

/**
 * Reads the configuration of the one image of an OCI image layout.
 * @throws Error when it is not as specified, or for another architecture
 */
export async function readLayout(
  layout: string,
  limits: JsonLimits,
): Promise<LayoutImage & { readonly digest: string }> {
  const read = async <T>(path: string, schema: z.ZodType<T>): Promise<T> => {
    const parsed = schema.safeParse(await readJson(createReadStream(join(layout, path)), limits));
    if (parsed.success) return parsed.data;
    throw new Error(`it is not as OCI specifies: ${parsed.error.issues[0]?.message}`);
  };
  const blobOf = ({ digest }: z.infer<typeof descriptor>): string =>
    digest.replace("sha256:", "blobs/sha256/");
  const { manifests } = await read("index.json", index);
  const { config } = await read(blobOf(manifests[0]), manifest);
  const { architecture, config: settings } = await read(blobOf(config), imageConfig);
  if (architecture !== ARCHITECTURE)
    throw new Error(`it is for ${architecture ?? "no architecture"}, and this server for ${ARCHITECTURE}`);
  return {
    layout,
    reference: NAME,
    digest: manifests[0].digest,
    environment: variablesOf(settings?.Env ?? []),
    template: readPushedTemplate(settings?.Labels?.[LABEL] ?? "", limits.maxValues),
  };
}

/** Variables of `NAME=value` lines; empty values and broken lines are left out, as at E2B. */
function variablesOf(lines: readonly string[]): Record<string, string> {
  const pairs = lines.flatMap((line): readonly (readonly [string, string])[] => {
    const [, name = "", value = ""] = /^([^=\0]+)=([^\0]*)$/.exec(line) ?? [];
    return name.trim() === "" || value.trim() === "" ? [] : [[name.trim(), value.trim()]];
  });
  return Object.fromEntries(pairs);
}
