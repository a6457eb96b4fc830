import { posix } from "node:path";
import type { Copy } from "dockerfile-ast";
import type { BuildStep } from "../model/build-request.js";
import { errorAt } from "./dockerfile-error.js";
import { execForm } from "./exec-form.js";

/** Flags that change nothing of the files. */
const WITHOUT_EFFECT: ReadonlySet<string> = new Set(["link"]);
const OWNER = /^[\w.-]+(:[\w.-]+)?$/;
const MODE = /^[0-7]{1,4}$/;

/** The steps of COPY or ADD: one for each of its sources. @throws DockerfileError */
export function copySteps(instruction: Copy): readonly BuildStep[] {
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
