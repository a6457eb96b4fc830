import type { ImageId } from "@coppice/core";
import type { BuildContext } from "./build-context.js";

/** The result of the steps of a build up to one, kept for later builds of its tenant. */
export interface Layer {
  /** SHA-256 of all that it depends on, in hexadecimal digits. */
  readonly key: string;
  readonly tenant: string;
  readonly backend: string;
  readonly image: ImageId;
  readonly context: BuildContext;
}

/** The cache of layers. An image that a layer, a build or a template has is not removed. */
export interface Layers {
  find(wanted: Pick<Layer, "key" | "tenant" | "backend">): Layer | undefined;
  add(layer: Layer): void;
}
