import type { SandboxBackend } from "@coppice/core/backend";
import type { BuildResult } from "../model/layer.js";
import type { BuildRequest } from "../model/build-request.js";
import type { Builder, BuildSurroundings } from "../model/builder.js";

type Script = (request: BuildRequest, surroundings: BuildSurroundings) => BuildResult | Promise<BuildResult>;

/** A builder that does what a test says: by default it makes an image and logs three lines. */
export class ScriptedBuilder implements Builder {
  readonly requests: BuildRequest[] = [];
  script: Script;
  readonly #backend: SandboxBackend;

  constructor(backend: SandboxBackend) {
    this.#backend = backend;
    this.script = (request, surroundings) => this.make(request, surroundings);
  }

  async build(request: BuildRequest, surroundings: BuildSurroundings): Promise<BuildResult> {
    this.requests.push(request);
    return this.script(request, surroundings);
  }

  /** Makes an image and a layer with it. */
  async make(
    { templateId, buildId, tenant, backend, base }: BuildRequest,
    { log, layers, signal }: BuildSurroundings,
  ): Promise<BuildResult> {
    const say = (message: string, step?: string): void => log({ level: "info", message, step });
    say(`Building template ${templateId}/${buildId}`);
    const image = layers.nameImage();
    const source = { layout: "/nowhere", reference: "image", maxBytes: 1, maxEntries: 1 };
    await this.#backend.images?.unpack(image, source, signal);
    layers.measured(image, (await this.#backend.images?.usage(image)) ?? 0);
    const context = { environment: { BUILT: "yes" }, user: "user", workdir: undefined };
    const key = Buffer.from(`${tenant} ${JSON.stringify(base)}`).toString("hex");
    layers.add({ key, tenant, backend, image, context, start: undefined, bytes: 1 });
    say("[base] FROM it", "base");
    say("Build finished, took 0s");
    return { image, context, start: undefined, bytes: 1 };
  }
}
