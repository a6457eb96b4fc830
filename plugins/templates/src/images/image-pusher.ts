import { randomUUID } from "node:crypto";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { messageOf, SandboxError, Semaphore, type Tenants } from "@coppice/core";
import { BuildFailure } from "../model/build-record.js";
import { copyByGate, hostFailure } from "./skopeo-copy.js";
import type { RegistryCredentials } from "../model/build-request.js";
import type { TransferReport } from "../model/builder.js";
import type { TemplatesConfig } from "../templates-config.js";
import type { HostPrograms } from "./host-programs.js";
import { type ImageReference, isDigest, parseImageReference } from "./image-reference.js";
import { openPushGate, refusalOf } from "./push-gate.js";
import { RegistryAccess, type RegistrySettings } from "./registry-access.js";
import { RegistryClient } from "./registry-client.js";
import { loginOf } from "./registry-login.js";
import { layerOfArchive, LAYOUT_NAME, type LayoutLayer, writeLayout } from "./write-layout.js";
import { REASONS } from "../reasons.js";

export interface PushTarget {
  /** As the client wrote it: `registry.example.com/team/name:tag`. */
  readonly reference: string;
  readonly credentials: RegistryCredentials | undefined;
}

export interface PushedFiles {
  /** A tar archive. */
  readonly archive: (signal: AbortSignal) => AsyncIterable<Uint8Array>;
  /** About as many as the archive has. */
  readonly bytes: number;
  /** Configuration of the image's programs, as OCI has it. */
  readonly settings: object;
}

export interface ImagePusherOptions {
  readonly programs: HostPrograms;
  readonly settings: Pick<TemplatesConfig, "images"> & { readonly registries: RegistrySettings };
  /** Who shares the turns. */
  readonly tenants?: Tenants;
  /** For layouts, which the next start removes if this server does not. */
  readonly directory: () => string;
}

export interface PushOptions {
  /** Whose turn it takes. */
  readonly tenant: string;
  readonly report: TransferReport;
  readonly signal: AbortSignal;
}

/** A place of a registry that images can be pushed to. */
export interface ImageTarget {
  /**
   * Pushes files as an image of one layer: equal ones have equal digests.
   * @returns the digest of the image. @throws SandboxError image_not_pushed, the signal's reason
   */
  push(files: PushedFiles, options: PushOptions): Promise<string>;
}

/** Of the headers of a file in an archive, with some to spare for long names. */
const HEADER_BYTES = 4_096;

/** Pushes images with skopeo. */
export class ImagePusher {
  readonly #options: ImagePusherOptions;
  readonly #access: RegistryAccess;
  readonly #turns: Semaphore;

  constructor(options: ImagePusherOptions) {
    this.#options = options;
    this.#access = new RegistryAccess(options.settings.registries);
    const { settings, tenants } = options;
    this.#turns = new Semaphore(settings.images.maxConcurrentPulls, tenants && { tenants });
  }

  /** Nothing is connected to yet. @throws SandboxError image_target_invalid */
  target({ reference: text, credentials }: PushTarget): ImageTarget {
    try {
      const reference = parseImageReference(text);
      if (isDigest(reference.version)) throw new Error(`'${text}' names a digest: name a tag, or nothing`);
      const repository = this.#access.find(reference, {
        hasCredentials: credentials !== undefined,
        writes: true,
      });
      return {
        push: (files, options) =>
          this.#turns.run(
            () => this.#push(files, { ...options, reference, repository, credentials }),
            options.signal,
            options.tenant,
          ),
      };
    } catch (error) {
      throw new SandboxError(REASONS.image_target_invalid, messageOf(error), { cause: error });
    }
  }

  async #push(
    files: PushedFiles,
    {
      reference,
      repository,
      credentials,
      report,
      signal,
    }: PushOptions & {
      readonly reference: ImageReference;
      readonly repository: ReturnType<RegistryAccess["find"]>;
      readonly credentials: RegistryCredentials | undefined;
    },
  ): Promise<string> {
    const { programs, settings } = this.#options;
    const directory = join(this.#options.directory(), randomUUID());
    const layout = join(directory, LAYOUT_NAME);
    try {
      const login = await loginOf(credentials, { proxy: this.#access.proxy, signal });
      using client = new RegistryClient({
        access: this.#access,
        repository,
        login,
        writes: true,
        settings: settings.images,
        signal,
      });
      // Before the files are packed: their registry may refuse them.
      await requireAccess(client);
      await mkdir(join(layout, "blobs/sha256"), { recursive: true, mode: 0o700 });
      const layer = await this.#pack(files, { layout, report, signal });
      const digest = await writeLayout(layout, layer, files.settings);
      let done = 0;
      const onBytes = (bytes: number): void =>
        report({ phase: "pushing", done: Math.min((done += bytes), layer.size), total: layer.size });
      onBytes(0);
      await using gate = await openPushGate({ client, onBytes });
      const { skopeo, maxSize: maxBytes } = settings.images;
      const to = `:${reference.version}`;
      const problem = await copyByGate(gate, { programs, skopeo, directory, to, maxBytes, signal });
      if (problem === undefined) return digest;
      throw gate.refusal ?? new Error(problem);
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof SandboxError) throw error;
      const ofHost = hostFailure(error);
      if (ofHost !== undefined) throw ofHost;
      const reason = messageOf(error);
      const text =
        error instanceof BuildFailure ? reason : `failed to push image '${reference.text}': ${reason}`;
      throw new SandboxError(REASONS.image_not_pushed, text, { cause: error });
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  }

  #pack(
    { archive, bytes }: PushedFiles,
    { layout, report, signal }: Pick<PushOptions, "report" | "signal"> & { readonly layout: string },
  ): Promise<LayoutLayer> {
    const { maxSize, maxEntries } = this.#options.settings.images;
    async function* counted(): AsyncIterable<Uint8Array> {
      let done = 0;
      try {
        for await (const chunk of archive(signal)) {
          done += chunk.byteLength;
          // Holes of files take no space in their sandbox, and are packed as bytes.
          if (done > maxSize + maxEntries * HEADER_BYTES) {
            const text = `the files have more than ${maxSize} bytes, those in holes included`;
            throw new SandboxError("image_too_large", text);
          }
          report({ phase: "packing", done, total: done > bytes ? undefined : bytes });
          yield chunk;
        }
      } catch (error) {
        if (error instanceof SandboxError) throw error;
        // What failed is of this host, with its paths.
        const text = "the files cannot be packed";
        throw hostFailure(error) ?? new SandboxError("internal_error", text, { cause: error });
      }
    }
    return layerOfArchive(layout, counted(), signal);
  }
}

/** Begins an upload, and gives it up. @throws Error with the reason of a registry that takes none */
async function requireAccess(client: RegistryClient): Promise<void> {
  const answer = await client.send({ method: "POST", path: "blobs/uploads/" });
  if (answer.statusCode >= 300) throw await refusalOf(answer);
  answer.destroy();
  const { location } = answer.headers;
  if (location === undefined) return;
  // One that stays is removed by its registry in time.
  const gone = await client.send({ method: "DELETE", path: location }).catch(() => undefined);
  gone?.destroy();
}
