import { BuildFailure } from "../model/build-failure.js";
import type { BuildStep } from "../model/build-request.js";
import { CommandFailure, mustRunInContext } from "../guest/context-command.js";
import type { StepResult, StepRun } from "./step-run.js";

/** Of a command line, in the reason of a failure. */
const LONGEST_SHOWN = 4_096;

/** `RUN command [user]` */
export async function runStep({ args }: BuildStep, run: StepRun): Promise<StepResult> {
  const { workspace, context, ...rest } = run;
  const [line, user] = args;
  if (line === undefined) throw new BuildFailure("RUN requires command argument", undefined);
  try {
    const own = user === undefined || user === "" ? context : { ...context, user };
    await mustRunInContext(await workspace.sandbox(), { ...rest, line, context: own, level: "info" });
  } catch (error) {
    if (!(error instanceof CommandFailure)) throw error;
    const shown = line.length > LONGEST_SHOWN ? `${line.slice(0, LONGEST_SHOWN)}…` : line;
    throw new BuildFailure(`failed to run command '${shown}': ${error.message}`, undefined, { cause: error });
  }
  return { context, isChanged: true };
}
