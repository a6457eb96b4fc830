import { posix } from "node:path";
import { type Copy, DockerfileParser, type Env, type Instruction, type Run } from "dockerfile-ast";
import { z } from "zod";
import type { BuildStep } from "../model/build-request.js";

/** Steps of a Dockerfile from root's `/` on, as in Docker, to the user of sandboxes, as E2B's clients send them. */
export function asInDocker(steps: readonly BuildStep[]): readonly BuildStep[] {
  const step = (type: string, value: string): BuildStep => ({
    type,
    args: [value],
    filesHash: undefined,
    force: false,
  });
  const has = (type: string): boolean => steps.some((each) => each.type === type);
  return [
    step("USER", "root"),
    step("WORKDIR", "/"),
    ...steps,
    ...(has("USER") ? [] : [step("USER", "user")]),
    ...(has("WORKDIR") ? [] : [step("WORKDIR", "/home/user")]),
  ];
}

/** A Dockerfile, or a line of it, cannot be built here. The message names the line. */
export class DockerfileError extends Error {
  override readonly name = "DockerfileError";
}

function errorAt(instruction: Instruction, reason: string): DockerfileError {
  const line = instruction.getInstructionRange().start.line + 1;
  return new DockerfileError(`line ${line}: ${instruction.getInstruction()}: ${reason}`);
}

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

/** Flags that change nothing of the files. */
const WITHOUT_EFFECT: ReadonlySet<string> = new Set(["link"]);
const OWNER = /^[\w.-]+(:[\w.-]+)?$/;
const MODE = /^[0-7]{1,4}$/;

/** The steps of COPY or ADD: one for each of its sources. @throws DockerfileError */
function copySteps(instruction: Copy): readonly BuildStep[] {
  if (instruction.getHeredocs().length > 0)
    throw errorAt(instruction, "files in the Dockerfile are not supported");
  const { owner, mode } = flagsOf(instruction);
  const words = execForm(instruction) ?? instruction.getArguments().map((one) => one.getValue());
  const destination = words.at(-1);
  if (destination === undefined || words.length < 2)
    throw errorAt(instruction, "a source and a destination are needed");
  if (words.some((word) => word.includes("$")))
    throw errorAt(instruction, "variables are not supported here");
  const isDirectory = destination.endsWith("/") || /^(.*\/)?\.{1,2}$/.test(destination);
  if (words.length > 2 && !isDirectory)
    throw errorAt(instruction, "the destination of several sources has to end with '/'");
  return words.slice(0, -1).map((word) => ({
    type: "COPY",
    args: [sourceOf(word, instruction), destination, owner, mode],
    filesHash: undefined,
    force: false,
  }));
}

function flagsOf(instruction: Copy): { readonly owner: string; readonly mode: string } {
  let [owner, mode] = ["", ""];
  for (const flag of instruction.getFlags()) {
    const [name, value] = [flag.getName().toLowerCase(), flag.getValue() ?? ""];
    if (name === "chown" && OWNER.test(value)) owner = value;
    else if (name === "chmod" && MODE.test(value)) mode = value;
    else if (!WITHOUT_EFFECT.has(name)) throw errorAt(instruction, `'${flag.toString()}' is not supported`);
  }
  return { owner, mode };
}

/** A source relative to the folder of the Dockerfile, where Docker takes absolute ones from as well. */
function sourceOf(word: string, instruction: Copy): string {
  if (/^(\w+:\/\/|git@)/.test(word)) throw errorAt(instruction, "only files of the folder can be copied");
  const source = posix.normalize(word).replace(/^\/+/, "").replace(/\/$/, "");
  if (/^\.\.(\/|$)/.test(source)) throw errorAt(instruction, `'${word}' is outside of the folder`);
  return source === "" ? "." : source;
}

const words = z.array(z.string()).min(1);

/** The words of `["a", "b"]` behind an instruction and its flags; undefined for another form. */
function execForm(instruction: Instruction): readonly string[] | undefined {
  // The parser's own reading of the words loses their spaces.
  const text = (instruction.getArgumentsContent() ?? "").replace(/^(\s*--\S+)*\s*/, "");
  if (!text.startsWith("[")) return undefined;
  try {
    return words.safeParse(JSON.parse(text)).data;
  } catch {
    return undefined;
  }
}
