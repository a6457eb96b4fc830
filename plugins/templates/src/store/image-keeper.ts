import { type Clock, type Logger, messageOf, newId, SandboxError, Semaphore } from "@coppice/core";
import type { Backends, ImageId } from "@coppice/core/backend";
import type { Layer, Layers } from "../model/layer.js";
import type { ImageRecord } from "./image-table.js";
import type { TemplatesStore } from "./templates-store.js";
import { REASONS } from "../reasons.js";

export interface ImageKeeperOptions {
  readonly store: () => TemplatesStore;
  readonly backends: Backends;
  readonly clock: Clock;
  readonly log: Pick<Logger, "warn" | "error">;
}

/** The layers of a tenant as one build uses them: images that it holds are not removed before it is disposed of. */
export interface HeldLayers extends Layers, Disposable {
  /** Holds an image that the build found elsewhere. */
  hold(image: ImageId): void;
}

/** Agreement of the store with the images of the backends. */
export interface ImageReport {
  /** Images that a build or a layer has and their backend has not. */
  readonly lost: readonly ImageRecord[];
  /** Images that no build and no layer has; those of a running build are not among them. */
  readonly unneeded: readonly Pick<ImageRecord, "id" | "backend">[];
  /** Images of backends that this server does not have, or that cannot list them. */
  readonly unknown: readonly ImageRecord[];
}

/** @throws SandboxError template_storage_full where the images of a tenant have as many bytes as they may. */
export function requireStorage({ images }: TemplatesStore, tenant: string, mostBytes: number): void {
  if (images.sum("bytes", { tenant }) < mostBytes) return;
  const text = `the templates of a tenant may have ${mostBytes} bytes; delete some of them`;
  throw new SandboxError(REASONS.template_storage_full, text);
}

/** Knows which images are needed, and removes the others from their backends. */
export class ImageKeeper {
  readonly #options: ImageKeeperOptions;
  /** How many running builds hold an image. */
  readonly #held = new Map<ImageId, number>();
  readonly #removals = new Semaphore();

  constructor(options: ImageKeeperOptions) {
    this.#options = options;
  }

  /** @param mostBytes of all images of the tenant; with as many, no further one is named. */
  layersOf(tenant: string, backend: string, mostBytes = Number.POSITIVE_INFINITY): HeldLayers {
    const { store, clock } = this.#options;
    const holds: ImageId[] = [];
    const hold = (image: ImageId): void => {
      holds.push(image);
      this.#held.set(image, (this.#held.get(image) ?? 0) + 1);
    };
    return {
      find: (wanted) => {
        const layer = store().layers.use(wanted, clock.now());
        if (layer !== undefined) hold(layer.image);
        return layer;
      },
      add: (layer: Layer) => {
        hold(layer.image);
        store().layers.add(layer, clock.now());
      },
      describe: (image, contents) => store().images.describe(image, contents),
      nameImage: () => {
        requireStorage(store(), tenant, mostBytes);
        const id = newId("image");
        hold(id);
        // Before the backend makes it: an image of an interrupted build is known, and removed.
        store().images.add({ id, backend, tenant });
        return id;
      },
      measured: (image, bytes) => void store().images.update({ id: image }, { bytes }),
      hold,
      [Symbol.dispose]: () => {
        for (const image of holds.splice(0)) this.#release(image);
      },
    };
  }

  /** Compares the store with the backends. Changes nothing. */
  async check(): Promise<ImageReport> {
    const { store } = this.#options;
    const { images } = store();
    const found = await this.#listed();
    // After the lists: a build that ran meanwhile has named its images before it made them.
    const unneeded = this.#unheld(images.unneeded());
    const known = images.all();
    const idle = new Set(unneeded.map(({ id }) => id));
    const needed = known.filter(({ id }) => !idle.has(id));
    const ids = new Set(known.map(({ id }) => id));
    const strays = [...found].flatMap(([backend, listed]) =>
      [...listed].filter((id) => !ids.has(id)).map((id) => ({ id, backend })),
    );
    return {
      lost: needed.filter(({ id, backend }) => !this.#held.has(id) && found.get(backend)?.has(id) === false),
      unneeded: [...unneeded, ...strays],
      unknown: needed.filter(({ backend }) => !found.has(backend)),
    };
  }

  /**
   * Brings the store and the backends into agreement: builds of lost images have failed, layers of them are forgotten,
   * and unneeded images are removed. The removal goes on after this returns.
   */
  async repair(): Promise<ImageReport> {
    const { store, clock, log } = this.#options;
    const report = await this.check();
    for (const { id, backend } of report.lost) {
      log.error({ image: id, backend }, "an image of a template is lost");
      store().atOnce(() => {
        store().builds.failLost(id, clock.now());
        store().layers.remove({ image: id });
        store().copies.remove({ image: id });
        store().images.remove({ id });
      });
    }
    this.remove(report.unneeded).catch((error: unknown) => {
      log.error({ err: error }, "images were not removed");
    });
    return report;
  }

  /** Removes images that nothing needs any more. @returns when it is done, or has failed for now. */
  sweep(): Promise<void> {
    return this.#removals.run(() => this.#removeAll(this.#unheld(this.#options.store().images.unneeded())));
  }

  /** Removes images that a check has found unneeded. @returns when it is done, or has failed for now. */
  remove(images: ImageReport["unneeded"]): Promise<void> {
    return this.#removals.run(() => this.#removeAll(images));
  }

  /** Forgets layers of a tenant, the last used ones last, until its images have less than so many bytes. */
  async makeRoom(tenant: string, mostBytes: number): Promise<void> {
    const { images, layers } = this.#options.store();
    const isFull = (): boolean => images.sum("bytes", { tenant }) >= mostBytes;
    for (let kept = layers.count({ tenant }); kept > 0 && isFull();) {
      // By halves, as each removal takes its time.
      kept = Math.floor(kept / 2);
      layers.forget(tenant, kept);
      await this.sweep();
    }
  }

  /** Measures the images of a tenant that are new. */
  async measure(tenant: string): Promise<void> {
    const { store, log } = this.#options;
    for (const { id, backend } of store().images.all({ tenant, bytes: undefined })) {
      try {
        const bytes = await this.#facetOf(backend)?.usage(id);
        if (bytes !== undefined) store().images.update({ id }, { bytes });
      } catch (error) {
        log.warn({ image: id, err: error }, "an image of a template could not be measured");
      }
    }
  }

  /** Resolves when no removal is under way. */
  async idle(): Promise<void> {
    await this.#removals.run(() => undefined);
  }

  async #removeAll(images: ImageReport["unneeded"]): Promise<void> {
    const { store, log } = this.#options;
    for (const { id, backend } of images) {
      const facet = this.#facetOf(backend);
      if (facet === undefined) continue;
      try {
        await facet.remove(id);
        store().images.remove({ id });
      } catch (error) {
        log.error(
          { image: id, backend, err: messageOf(error) },
          "an image could not be removed; it is tried again",
        );
      }
    }
  }

  /** Images of each backend that can list them: of another one, none counts as lost. */
  async #listed(): Promise<ReadonlyMap<string, ReadonlySet<ImageId>>> {
    const { backends, log } = this.#options;
    const found = new Map<string, ReadonlySet<ImageId>>();
    for (const { name, images } of backends.all()) {
      if (images === undefined) continue;
      try {
        found.set(name, new Set(await images.list()));
      } catch (error) {
        log.error({ backend: name, err: error }, "the images of a backend could not be listed");
      }
    }
    return found;
  }

  #facetOf(name: string) {
    return this.#options.backends.all().find((backend) => backend.name === name)?.images;
  }

  #unheld(images: readonly ImageRecord[]): readonly ImageRecord[] {
    return images.filter(({ id }) => !this.#held.has(id));
  }

  #release(image: ImageId): void {
    const left = (this.#held.get(image) ?? 0) - 1;
    if (left > 0) this.#held.set(image, left);
    else this.#held.delete(image);
  }
}
