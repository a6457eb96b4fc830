import { type Copy, DockerfileParser, type Env, type Instruction, type Run } from "dockerfile-ast";
import type { BuildStep } from "../model/build-request.js";
import { copySteps } from "./copy-instruction.js";
import { errorAt } from "./dockerfile-error.js";
import { execForm } from "./exec-form.js";

/** What a Dockerfile of one stage says. */
export interface ParsedDockerfile {
  /** Reference of the image in FROM; undefined without one. */
  readonly image: string | undefined;
  /** Those of COPY have a step for each source, and no archive yet. */
  readonly steps: readonly BuildStep[];
  /** Of ENTRYPOINT and CMD, as one line for a shell. */
  readonly startCommand: string | undefined;
}

/** Instructions without a meaning for sandboxes. */
const LEFT_OUT: ReadonlySet<string> = new Set([
  "EXPOSE",
  "VOLUME",
  "LABEL",
  "MAINTAINER",
  "STOPSIGNAL",
  "HEALTHCHECK",
]);

/**
 * Reads a Dockerfile as E2B's clients do: ARG is ENV, ADD is COPY, and ENTRYPOINT with CMD is the start command.
 * @throws DockerfileError for several stages, and for instructions that cannot be kept.
 */
export function parseDockerfile(text: string): ParsedDockerfile {
  const steps: BuildStep[] = [];
  let image: string | undefined;
  let entrypoint: string | undefined;
  let command: string | undefined;
  for (const instruction of DockerfileParser.parse(text).getInstructions()) {
    const keyword = instruction.getKeyword();
    if (keyword === "FROM") {
      if (image !== undefined) throw errorAt(instruction, "several stages are not supported");
      image = instruction.getArguments()[0]?.getValue();
      if (image?.includes("$")) throw errorAt(instruction, "variables are not supported here");
    } else if (keyword === "ENTRYPOINT") entrypoint = programOf(instruction);
    else if (keyword === "CMD") command = programOf(instruction);
    else if (keyword === "COPY" || keyword === "ADD") steps.push(...copySteps(instruction as Copy));
    else if (!LEFT_OUT.has(keyword)) steps.push(stepOf(instruction, keyword));
  }
  const line = [entrypoint, command].filter((part) => part !== undefined).join(" ");
  return { image, steps, startCommand: line === "" ? undefined : line };
}

function stepOf(instruction: Instruction, keyword: string): BuildStep {
  const step = (type: string, args: readonly string[]): BuildStep => ({
    type,
    args,
    filesHash: undefined,
    force: false,
  });
  switch (keyword) {
    case "RUN":
      return step("RUN", [commandOf(instruction)]);
    case "ENV":
    case "ARG": {
      const pairs = (instruction as Env)
        .getProperties()
        .map((one) => [one.getName(), one.getValue() ?? ""] as const);
      if (pairs.length === 0) throw errorAt(instruction, "a name and a value are needed");
      return step(keyword, pairs.flat());
    }
    case "USER":
    case "WORKDIR": {
      const value = instruction.getArgumentsContent()?.trim() ?? "";
      if (value === "") throw errorAt(instruction, "a value is needed");
      return step(keyword, [value]);
    }
    default:
      throw errorAt(instruction, "this instruction is not supported");
  }
}

/** The command of RUN as lines for a shell. A here-document alone is the script. */
function commandOf(instruction: Instruction): string {
  const text = instruction.getRawArgumentsContent()?.trim() ?? "";
  if (text === "") throw errorAt(instruction, "a command is needed");
  const [flag] = (instruction as Run).getFlags();
  if (flag !== undefined) throw errorAt(instruction, `'${flag.toString()}' is not supported`);
  const [script] = (instruction as Run).getHeredocs();
  const isScript = script !== undefined && /^<<-?["']?\w+["']?\n/.test(text);
  if (isScript) return text.split("\n").slice(1, -1).join("\n");
  return programOf(instruction) ?? text;
}

/** The exec form quoted for a shell, or the shell form as it is. */
function programOf(instruction: Instruction): string | undefined {
  const words = execForm(instruction);
  if (words !== undefined) return words.map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(" ");
  return instruction.getArgumentsContent()?.trim();
}
