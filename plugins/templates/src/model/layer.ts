import type { TemplateFacts } from "@coppice/core";
import type { ImageId, Limits } from "@coppice/core/backend";

/** The start command of a build, as its sandboxes record it. */
export type StartCommand = NonNullable<NonNullable<TemplateFacts["build"]>["start"]>;

/** The result of the steps of a build up to one, kept for later builds of its tenant. */
export interface Layer {
  /** SHA-256 of all that it depends on, in hexadecimal digits. */
  readonly key: string;
  readonly tenant: string;
  readonly backend: string;
  readonly image: ImageId;
  readonly context: BuildContext;
  /** Of the template that it was built from, or of the build whose last layer it is. */
  readonly start: StartCommand | undefined;
  /** Of its files, those of the layers below it included. */
  readonly bytes: number;
}

/**
 * The cache of layers, as one build uses it: until it ends, no image is removed that it found here, added or was named
 * for it. An image that a layer, a build or a template has is not removed either.
 */
export interface Layers {
  find(wanted: Pick<Layer, "key" | "tenant" | "backend">): Layer | undefined;
  /** Keeps a layer, in place of one with the same key, tenant and backend. */
  add(layer: Layer): void;
  /** Records the packages of an image that was made: lines of `kind name version`. */
  describe(image: ImageId, contents: readonly string[]): void;
  /** Id for an image that the build is about to make. @throws SandboxError template_storage_full */
  nameImage(): ImageId;
  /** Records the bytes of an image that was made, which count from then on. */
  measured(image: ImageId, bytes: number): void;
}

/** What the steps of a build have set; the later ones and the template's sandboxes go on from here. */
export interface BuildContext {
  /** Of the image's ENV, then of ENV steps. Seen by steps and start commands, not by a sandbox's own commands. */
  readonly environment: Readonly<Record<string, string>>;
  readonly user: string;
  /** Undefined = the home of the user. */
  readonly workdir: string | undefined;
  /** Limits of the pushed template that a build restores. */
  readonly limits?: Pick<Limits, "cpuCount" | "memoryMiB" | "diskMiB"> | undefined;
}

/** A finished build. */
export interface BuildResult {
  readonly image: ImageId;
  readonly context: BuildContext;
  readonly start: StartCommand | undefined;
  /** Bytes of its files. */
  readonly bytes: number;
}
