import { BuildFailure } from "../model/build-failure.js";
import type { BuildStep } from "../model/build-request.js";
import { makeAccount } from "../guest/accounts.js";
import type { StepResult, StepRun } from "./step-run.js";

/** `USER name [true]`, with `true` for one that may become root. */
export async function userStep({ args }: BuildStep, run: StepRun): Promise<StepResult> {
  const { workspace, context, signal } = run;
  const [name, isSudoer] = args;
  if (name === undefined) throw new BuildFailure("USER requires a username argument", undefined);
  const isChanged = await makeAccount(await workspace.sandbox(), name, {
    isSudoer: isSudoer === "true",
    signal,
  });
  return { context: { ...context, user: name }, isChanged };
}
