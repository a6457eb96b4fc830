import { type Clock, newId, type Logger } from "@coppice/core";
import type { ImageId, Sandbox, SandboxBackend, Service } from "@coppice/core/backend";
import type { BuildRequest } from "../model/build-request.js";
import type { Layers } from "../model/layer.js";
import { runScript } from "./guest-run.js";

export interface WorkspaceOptions {
  readonly backend: SandboxBackend;
  readonly images: NonNullable<SandboxBackend["images"]>;
  readonly request: BuildRequest;
  readonly layers: Layers;
  readonly allowInternetAccess: boolean;
  /** Services of the operator that its sandboxes reach. */
  readonly reaches: readonly Service[];
  readonly signal: AbortSignal;
  readonly clock: Clock;
  readonly log: Logger;
}

/** An image that has been made, with all of its bytes. */
export interface MadeImage {
  readonly image: ImageId;
  readonly bytes: number;
}

/**
 * The files that a build works on: an image, and a sandbox of it as soon as one is needed. Sandboxes of builds are none
 * of the server's list: the next start of a server destroys one that a crash left.
 */
export class Workspace implements AsyncDisposable {
  readonly #options: WorkspaceOptions;
  #image: ImageId | undefined;
  #sandbox: Sandbox | undefined;
  #beganAtMs = 0;

  constructor(options: WorkspaceOptions) {
    this.#options = options;
  }

  /** Goes on with an image. A sandbox of another one is destroyed. */
  async open(image: ImageId): Promise<void> {
    if (image === this.#image) return;
    await this.#destroy();
    this.#image = image;
  }

  /** The sandbox of the image. @throws SandboxError as `SandboxBackend.provision`, the signal's reason */
  async sandbox(): Promise<Sandbox> {
    const { backend, request, allowInternetAccess, reaches, clock, signal } = this.#options;
    if (this.#image === undefined) throw new Error("no image is open");
    if (this.#sandbox === undefined) this.#beganAtMs = clock.now();
    this.#sandbox ??= await backend.provision(
      {
        id: newId("sandbox"),
        template: request.templateId,
        image: { id: this.#image, user: "root" },
        limits: request.limits,
        allowInternetAccess,
        ...(reaches.length > 0 && { reaches }),
      },
      signal,
    );
    return this.#sandbox;
  }

  /** Makes an image of the sandbox's files, and goes on with it. @param below bytes of the image it was made of. */
  async commit(below: number): Promise<MadeImage> {
    const sandbox = await this.sandbox();
    if (sandbox.committing === undefined)
      throw new Error(`backend ${this.#options.backend.name} cannot commit`);
    const { committing } = sandbox;
    const { log, request, signal } = this.#options;
    try {
      if (request.isReproducible && !(await forgetBuild(sandbox, this.#beganAtMs, signal)))
        log.warn({ template: request.templateId }, "another build of this template will not be the same");
      const made = await this.#make(below, (image) => committing.commit(image));
      this.#image = made.image;
      return made;
    } finally {
      // Nothing else works after a commit, and after one that failed perhaps nothing.
      await this.#destroy();
    }
  }

  /** Unpacks an image, and goes on with it. */
  async unpack(unpack: (image: ImageId) => Promise<void>): Promise<MadeImage> {
    const made = await this.#make(0, unpack);
    await this.open(made.image);
    return made;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#destroy();
  }

  async #make(below: number, make: (image: ImageId) => Promise<void>): Promise<MadeImage> {
    const { images, layers, signal, log } = this.#options;
    const image = layers.nameImage();
    try {
      await make(image);
      signal.throwIfAborted();
      const bytes = await images.usage(image);
      layers.measured(image, bytes);
      return { image, bytes: below + bytes };
    } catch (error) {
      await images.remove(image).catch((failure: unknown) => {
        log.warn({ image, err: failure }, "the image of a failed build was not removed");
      });
      throw error;
    }
  }

  async #destroy(): Promise<void> {
    const sandbox = this.#sandbox;
    this.#sandbox = undefined;
    await sandbox?.destroy().catch((error: unknown) => {
      this.#options.log.error({ sandbox: sandbox.id, err: error }, "a build's sandbox was not destroyed");
    });
  }
}

/** 2020-01-01, which also archives of kinds without earlier years can have. */
const EPOCH = 1_577_836_800;

/**
 * Empties the files that a backend writes for each sandbox, and sets the times of what is new. Parameters: the second
 * before the sandbox began, and a new file to compare with. busybox compares with files alone.
 */
const FORGET = `
cd / || exit
for file in /etc/hostname /etc/hosts /etc/resolv.conf; do
  [ ! -f "$file" ] || [ -L "$file" ] || : > "$file"
done
touch -d "@$1" "$2" &&
  find / -xdev \\( -path /dev -o -path /proc -o -path /sys \\) -prune -o -newer "$2" -exec touch -h -d @${EPOCH} {} +
code=$?
rm -f "$2" && touch -d @${EPOCH} / && exit $code
`;

/**
 * Removes from the files of a sandbox when and where they were made.
 * @param beganAtMs when the sandbox did. @returns false where the image lacks programs for it.
 */
async function forgetBuild(sandbox: Sandbox, beganAtMs: number, signal: AbortSignal): Promise<boolean> {
  const args = [String(Math.floor(beganAtMs / 1000) - 1), `/.${sandbox.id}`];
  const { exit } = await runScript(sandbox, FORGET, { args, shell: "sh", signal });
  return exit.code === 0;
}
