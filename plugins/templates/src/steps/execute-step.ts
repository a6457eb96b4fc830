import { BuildFailure } from "../model/build-record.js";
import type { BuildStep } from "../model/build-request.js";
import { copyStep, type StepResult, type StepRun } from "./copy-step.js";
import { failureText, runScript } from "../guest/guest-run.js";
import { CommandFailure, mustRunInContext } from "../guest/context-command.js";
import { makeAccount, makeWorkdir } from "../guest/accounts.js";
import { posix } from "node:path";

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
  if (execute === undefined)
    throw new BuildFailure(`command type ${step.type} is not implemented`, undefined);
  return execute(step, run);
}

const LONGEST_PATH = 4_095;

/** `WORKDIR path` */
async function workdirStep({ args }: BuildStep, run: StepRun): Promise<StepResult> {
  const { workspace, context, signal } = run;
  const [path] = args;
  if (path === undefined) throw new BuildFailure("WORKDIR requires a path argument", undefined);
  if (path.includes("\0") || Buffer.byteLength(path) > LONGEST_PATH)
    refuse("failed to create workdir: it is no path");
  // As at E2B, relative ones begin at the root while there is none.
  const workdir = posix.resolve(context.workdir ?? "/", path);
  const sandbox = await workspace.sandbox();
  const isChanged = await makeWorkdir(sandbox, { path: workdir, user: context.user, signal });
  return { context: { ...context, workdir }, isChanged };
}

/** `USER name [true]`, with `true` for one that may become root. */
async function userStep({ args }: BuildStep, run: StepRun): Promise<StepResult> {
  const { workspace, context, signal } = run;
  const [name, isSudoer] = args;
  if (name === undefined) throw new BuildFailure("USER requires a username argument", undefined);
  const isChanged = await makeAccount(await workspace.sandbox(), name, {
    isSudoer: isSudoer === "true",
    signal,
  });
  return { context: { ...context, user: name }, isChanged };
}

/** Of a command line, in the reason of a failure. */
const LONGEST_SHOWN = 4_096;

/** `RUN command [user]` */
async function runStep({ args }: BuildStep, run: StepRun): Promise<StepResult> {
  const { workspace, context, proxies, ...rest } = run;
  const [line, user] = args;
  if (line === undefined) throw new BuildFailure("RUN requires command argument", undefined);
  try {
    const environment = { ...proxies, ...context.environment };
    const own = { ...context, environment, ...(user !== undefined && user !== "" && { user }) };
    await mustRunInContext(await workspace.sandbox(), { ...rest, line, context: own, level: "info" });
  } catch (error) {
    if (!(error instanceof CommandFailure)) throw error;
    const shown = line.length > LONGEST_SHOWN ? `${line.slice(0, LONGEST_SHOWN)}…` : line;
    throw new BuildFailure(`failed to run command '${shown}': ${error.message}`, undefined, { cause: error });
  }
  return { context, isChanged: true };
}

/** `$NAME`, `${NAME}`, `${NAME:-default}`, `${NAME:+alternative}` */
const REFERENCE = /\$(?:\{([A-Za-z_]\w*)(?::([-+])([^}]*))?\}|([A-Za-z_]\w*))/g;

/** Prints a NUL, after whatever a profile prints, then variables of root's login shell, each with a NUL after it. */
const PRINT_VARIABLES = `
exec /bin/bash -l -c 'printf "\\0"; for name in "$@"; do printf "%s\\0" "\${!name}"; done' bash "$@"
`;

/** `ENV name value …` and `ARG name value …` */
async function environmentStep({ type, args }: BuildStep, run: StepRun): Promise<StepResult> {
  if (args.length === 0) refuse(`${type.toUpperCase()} does not support passing no arguments`);
  if (args.length % 2 !== 0) refuse(`${type.toUpperCase()} requires both a key and value arguments`);
  const given = new Map<string, string>();
  for (let at = 0; at < args.length; at += 2) {
    const [name = "", value = ""] = args.slice(at, at + 2);
    // The parser of Dockerfiles in E2B's JavaScript client takes `A="b c"` for two arguments: names may have a `=`.
    if (name === "" || name.includes("\0")) refuse(`'${name}' is no name of an environment variable`);
    if (value.includes("\0")) refuse(`the value of ${name} contains a NUL byte`);
    given.set(name, value);
  }
  const names = [...given.values()].flatMap((value) =>
    partsOf(value).flatMap((part) =>
      [...part.matchAll(REFERENCE)].map(([, braced, , , bare]) => braced ?? bare ?? ""),
    ),
  );
  const known =
    names.length === 0 ? new Map<string, string>() : await readVariables([...new Set(names)], run);
  const expandPart = (part: string): string =>
    part.replaceAll(REFERENCE, (_, braced?: string, operator?: string, word = "", bare?: string) => {
      const found = known.get(braced ?? bare ?? "") ?? "";
      if (operator === "-" && found === "") return word;
      return operator === "+" && found !== "" ? word : operator === "+" ? "" : found;
    });
  const expand = (value: string): string => {
    const [closed = "", ...open] = partsOf(value).map(expandPart);
    return closed + open.join("${");
  };
  const added = Object.fromEntries([...given].map(([name, value]) => [name, expand(value)]));
  const { context } = run;
  return { context: { ...context, environment: { ...context.environment, ...added } }, isChanged: false };
}

/**
 * Parts of a value to look for references in. Behind its last brace none in braces ends: looking for its end from each
 * `${` again would hold up the event loop.
 */
function partsOf(value: string): readonly [closed: string, ...open: string[]] {
  const end = value.lastIndexOf("}") + 1;
  return [value.slice(0, end), ...value.slice(end).split("${")];
}

/** Variables of root's login shell, which does not see those of earlier steps. */
async function readVariables(
  names: readonly string[],
  { workspace, signal }: StepRun,
): Promise<Map<string, string>> {
  const result = await runScript(await workspace.sandbox(), PRINT_VARIABLES, { args: names, signal });
  if (result.exit.code !== 0) refuse(`failed to evaluate environment variables: ${failureText(result)}`);
  const values = result.stdout.split("\0").slice(1);
  return new Map(names.map((name, at) => [name, values[at] ?? ""]));
}

function refuse(message: string): never {
  throw new BuildFailure(message, undefined);
}
