import { BuildFailure } from "../model/build-failure.js";
import type { BuildStep } from "../model/build-request.js";
import { copyStep } from "./copy-step.js";
import { environmentStep } from "./environment-step.js";
import { runStep } from "./run-step.js";
import type { StepResult, StepRun } from "./step-run.js";
import { userStep } from "./user-step.js";
import { workdirStep } from "./workdir-step.js";

const STEPS: ReadonlyMap<string, (step: BuildStep, run: StepRun) => Promise<StepResult>> = new Map([
  ["RUN", runStep],
  ["ENV", environmentStep],
  ["ARG", environmentStep],
  ["USER", userStep],
  ["WORKDIR", workdirStep],
  ["COPY", copyStep],
  ["ADD", copyStep],
]);

/** Executes a step. @throws BuildFailure, SandboxError, the signal's reason */
export async function executeStep(step: BuildStep, run: StepRun): Promise<StepResult> {
  const execute = STEPS.get(step.type.toUpperCase());
  if (execute === undefined) {
    throw new BuildFailure(`command type ${step.type} is not implemented`, undefined);
  }
  return execute(step, run);
}
