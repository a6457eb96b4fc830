import { randomUUID } from "node:crypto";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { SandboxError } from "@coppice/core";
import type { ImageId, ImageSource } from "@coppice/core/backend";
import { z } from "zod";
import type { Confinement } from "../launcher/confined-program.js";
import type { Launcher } from "../launcher/launcher.js";
import type { UserNamespace } from "../launcher/user-namespace.js";
import type { IdRanges, ProjectQuotas } from "../limits/given-numbers.js";
import { type Chain, LayerStore } from "./layer-store.js";
import { packFiles } from "./pack-files.js";
import { countTree, unpackLayers } from "./unpack-layers.js";

interface ImageStoreOptions {
  readonly directory: string;
  /** Directory for what is packed, which nobody else uses. */
  readonly packing: string;
  readonly launcher: Launcher;
  readonly chainsInUse: () => Promise<readonly Chain[]>;
  readonly users: UserNamespace | undefined;
  readonly ids: IdRanges | undefined;
  readonly quotas: ProjectQuotas | undefined;
}

const imageFacts = z
  .object({
    /** Images below its files, topmost first. */
    chain: z.array(z.string()).readonly(),
    /** Bytes of its files; undefined before they were counted. */
    bytes: z.number().optional(),
    /** Project of its files, once that of the sandbox which they were made in. */
    project: z.number().optional(),
  })
  .readonly();
type ImageFacts = z.infer<typeof imageFacts>;

/** Layers of a sandbox's root; snapshots and its own come above them. */
export const MAX_IMAGES = 96;
/** Named as in the layers of a sandbox, one of which becomes an image as it is. */
const FILES = "upper";
const MOUNT_POINTS = ["dev", "proc", "sys"];

/** Root file systems of templates: unpacked ones, and layers that a sandbox made above others. */
export class ImageStore extends LayerStore<ImageFacts> {
  readonly #options: ImageStoreOptions;

  constructor(options: ImageStoreOptions) {
    super({
      ...options,
      record: "image.json",
      schema: imageFacts,
      onFreed: async ({ project }) => {
        if (project !== undefined) await options.quotas?.release(project);
      },
    });
    this.#options = options;
  }

  override async open(): Promise<void> {
    await super.open();
    const { launcher, packing } = this.#options;
    await launcher.remove(packing);
    await mkdir(packing, { mode: 0o700 });
    for (const { project } of await this.all()) {
      if (project !== undefined) this.#options.quotas?.reclaim(project);
    }
  }

  /** @throws SandboxError image_invalid, image_too_large, failed_precondition without umoci, or the signal's reason. */
  async unpack(id: ImageId, source: ImageSource, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const { ids, launcher, users } = this.#options;
    const firstId = ids?.take();
    try {
      await this.make(id, async (making) => {
        const root = join(making, FILES);
        await mkdir(root);
        const confinement: Confinement = { launcher, users, firstId, place: join(making, "place") };
        const { bytes } = await unpackLayers(confinement, { root, source }, signal);
        return { chain: [], bytes };
      });
    } finally {
      if (firstId !== undefined) ids?.release(firstId);
    }
  }

  /**
   * Makes an image of the layer of a sandbox that has ended, without copying it.
   * @param options `layer` a directory of a sandbox's layers, which moves; `chain` the images below it.
   * @throws SandboxError failed_precondition when the chain is too long.
   */
  async commit(
    id: ImageId,
    options: { readonly layer: string; readonly chain: Chain; readonly project: number | undefined },
  ): Promise<void> {
    const { chain, layer, project } = options;
    if (chain.length >= MAX_IMAGES) {
      const text = `the image stands on ${MAX_IMAGES} others, and no more can be mounted`;
      throw new SandboxError("image_too_deep", text);
    }
    const { launcher } = this.#options;
    await launcher.remove(join(layer, "work"));
    // Nobody inside can set the times of what is mounted on: like times for like steps.
    const mountPoints = MOUNT_POINTS.map((name) => join(layer, FILES, name));
    await launcher.run(["touch", "--no-create", "--no-dereference", "--date=@0", ...mountPoints]);
    await this.take(id, layer, { chain, project });
  }

  /** Chain of a sandbox that begins with an image. @throws SandboxError not_found */
  async chainOf(id: ImageId): Promise<Chain> {
    return [id, ...(await this.#get(id)).chain];
  }

  lowers(chain: Chain): readonly string[] {
    return chain.map((id) => join(this.pathOf(id), FILES));
  }

  /**
   * Packs the files of an image and of layers above it.
   * @param above host paths, topmost first.
   * @throws SandboxError not_found, template_unusable, or the signal's reason.
   */
  async *pack(id: ImageId, above: readonly string[], signal: AbortSignal): AsyncIterable<Uint8Array> {
    const { ids, launcher, packing, users } = this.#options;
    using _held = this.hold(id);
    const lowers = [...above, ...this.lowers(await this.chainOf(id))];
    const firstId = ids?.take();
    try {
      yield* packFiles({ launcher, users, firstId, place: join(packing, randomUUID()) }, lowers, signal);
    } finally {
      if (firstId !== undefined) ids?.release(firstId);
    }
  }

  async usage(id: ImageId): Promise<number> {
    const { launcher, quotas } = this.#options;
    const { bytes, project } = await this.#get(id);
    if (bytes !== undefined) return bytes;
    if (project !== undefined && quotas !== undefined) return quotas.usage(project);
    return (await countTree(launcher, join(this.pathOf(id), FILES))).bytes;
  }

  async #get(id: ImageId): Promise<ImageFacts> {
    const facts = await this.find(id);
    if (facts === undefined) throw new SandboxError("image_not_found", `image '${id}' not found`);
    return facts;
  }
}
