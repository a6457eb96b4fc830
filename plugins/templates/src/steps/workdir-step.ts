import { posix } from "node:path";
import { BuildFailure } from "../model/build-failure.js";
import type { BuildStep } from "../model/build-request.js";
import { makeWorkdir } from "../guest/make-directory.js";
import type { StepResult, StepRun } from "./step-run.js";

const LONGEST = 4_095;

/** `WORKDIR path` */
export async function workdirStep({ args }: BuildStep, run: StepRun): Promise<StepResult> {
  const { workspace, context, signal } = run;
  const [path] = args;
  if (path === undefined) throw new BuildFailure("WORKDIR requires a path argument", undefined);
  if (path.includes("\0") || Buffer.byteLength(path) > LONGEST) refuse("it is no path");
  // As at E2B, relative ones begin at the root while there is none.
  const workdir = posix.resolve(context.workdir ?? "/", path);
  const sandbox = await workspace.sandbox();
  const isChanged = await makeWorkdir(sandbox, { path: workdir, user: context.user, signal });
  return { context: { ...context, workdir }, isChanged };
}

function refuse(reason: string): never {
  throw new BuildFailure(`failed to create workdir: ${reason}`, undefined);
}
