import { SandboxError } from "@coppice/core";
import type { Backends } from "@coppice/core/backend";
import type { BuildResult } from "../model/layer.js";
import { BuildFailure } from "../model/build-record.js";
import { type StepProxies, stepProxies } from "../guest/step-proxies.js";
import type { BuildRequest, BuildStep } from "../model/build-request.js";
import type { Builder, BuildSurroundings } from "../model/builder.js";
import { startFrom } from "./base-phase.js";
import { type BuildServices, BuildTools, durationText, type Progress, stepKey } from "./build-tools.js";
import { finalize } from "./finalize-phase.js";
import { withRoom } from "./with-room.js";
import { executeStep } from "../steps/execute-step.js";

const INTERNAL = "An internal error occurred. Please try again or contact support with the build ID.";

/** Builds templates in sandboxes of their backend. */
export class ImageBuilder implements Builder {
  readonly #options: BuildServices & { readonly backends: Backends };

  constructor(options: BuildServices & { readonly backends: Backends }) {
    this.#options = options;
  }

  async build(request: BuildRequest, surroundings: BuildSurroundings): Promise<BuildResult> {
    const { clock } = this.#options;
    const { log, signal } = surroundings;
    const beganAtMs = clock.now();
    log({
      level: "info",
      message: `Building template ${request.templateId}/${request.buildId}`,
      step: undefined,
    });
    let step: string | undefined = "base";
    try {
      signal.throwIfAborted();
      const proxies = await stepProxies(this.#options.settings.builds.proxy, request);
      await using tools = this.#toolsFor(request, surroundings, proxies);
      try {
        const { image, context, start, bytes } = await this.#run(tools);
        const message = `Build finished, took ${durationText(clock.now() - beganAtMs)}`;
        log({ level: "info", message, step: undefined });
        return { image, context, start, bytes };
      } finally {
        step = tools.step;
      }
    } catch (error) {
      const failure = toldAs(signal.aborted ? signal.reason : error, step);
      const reason = failure instanceof BuildFailure ? failure.message : INTERNAL;
      log({ level: "error", message: `Build failed: ${reason}`, step });
      throw failure;
    }
  }

  #toolsFor(request: BuildRequest, surroundings: BuildSurroundings, proxies: StepProxies): BuildTools {
    const { backends, ...services } = this.#options;
    const backend = backends.get(request.backend);
    const { images, name, templates } = backend;
    if (images === undefined) {
      const list = templates === undefined ? "" : `: ${templates.join(", ")}`;
      throw new BuildFailure(`backend '${name}' cannot build templates; it has its own${list}`, "base");
    }
    return new BuildTools({ ...services, request, surroundings, backend, images, proxies });
  }

  async #run(tools: BuildTools) {
    const { base, steps } = tools.options.request;
    tools.step = "base";
    let progress = await startFrom(base, tools);
    for (const [at, step] of steps.entries()) {
      tools.signal.throwIfAborted();
      tools.step = String(at + 1);
      progress = await takeStep(progress, { step, number: at + 1 }, tools);
    }
    tools.step = "finalize";
    return finalize(progress, tools);
  }
}

/** A failure with the step that it happened in. What a backend says is for the client, unless it is its own fault. */
function toldAs(error: unknown, step: string | undefined): unknown {
  if (error instanceof BuildFailure && error.step !== undefined) return error;
  const isTold =
    error instanceof BuildFailure || (error instanceof SandboxError && error.code !== "internal");
  return isTold ? new BuildFailure(error.message, step, { cause: error }) : error;
}

/** Brings a build over one of its steps. @param number from 1 on. @throws BuildFailure, SandboxError, the signal's reason */
async function takeStep(
  before: Progress,
  { step, number }: { readonly step: BuildStep; readonly number: number },
  tools: BuildTools,
): Promise<Progress> {
  const { workspace, signal, options } = tools;
  const { request, surroundings, settings } = options;
  const prefix = `builder ${number}/${request.steps.length}`;
  const key = stepKey(before.key, step);
  tools.isForced ||= step.force;
  const cached = tools.cached(key);
  const text = [step.type.toUpperCase(), ...step.args].join(" ");
  tools.announce({ prefix, text, key, isCached: cached !== undefined });
  if (cached !== undefined) return cached;
  return withRoom(before, tools, async (below) => {
    await workspace.open(below.image);
    const { context, isChanged } = await executeStep(step, {
      workspace,
      context: below.context,
      templateId: request.templateId,
      proxies: tools.proxies,
      signal,
      print: tools.print,
      prefix,
      findUpload: (filesHash) => surroundings.findUpload(filesHash),
      maxCopyBytes: settings.builds.maxCopy,
    });
    const made = isChanged ? await workspace.commit(below.bytes) : below;
    return tools.keep({ key, image: made.image, bytes: made.bytes, context, start: below.start });
  });
}
