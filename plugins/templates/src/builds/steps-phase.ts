import type { BuildStep } from "../model/build-request.js";
import type { BuildTools, Progress } from "./build-tools.js";
import { stepKey } from "./layer-key.js";
import { withRoom } from "./with-room.js";
import { executeStep } from "../steps/execute-step.js";

/** Brings a build over one of its steps. @param number from 1 on. @throws BuildFailure, SandboxError, the signal's reason */
export async function takeStep(
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
