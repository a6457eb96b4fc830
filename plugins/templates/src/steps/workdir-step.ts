import { posix } from "node:path";
import { BuildFailure } from "../model/build-failure.js";
import type { BuildStep } from "../model/build-request.js";
import { failureText, runScript } from "../guest/guest-run.js";
import type { StepResult, StepRun } from "./step-run.js";

/** Exit code for a directory that is there. */
const UNCHANGED = 10;
const LONGEST = 4_095;

/** Makes a directory and its missing parents, and gives the new ones to a user. Parameters: its path, `uid:gid`. */
const MAKE_DIRECTORY = `
set -e
path=$1 new=
[ ! -d "$path" ] || exit ${UNCHANGED}
while [ ! -d "$path" ]; do new=$path path=\${path%/*}; path=\${path:-/}; done
mkdir -p -- "$1"
chown -R -h -- "$2" "$new"
`;

/** `WORKDIR path` */
export async function workdirStep({ args }: BuildStep, run: StepRun): Promise<StepResult> {
  const { workspace, context, signal } = run;
  const [path] = args;
  if (path === undefined) throw new BuildFailure("WORKDIR requires a path argument", undefined);
  if (path.includes("\0") || Buffer.byteLength(path) > LONGEST) refuse("it is no path");
  // As at E2B, relative ones begin at the root while there is none.
  const workdir = posix.resolve(context.workdir ?? "/", path);
  const sandbox = await workspace.sandbox();
  const { uid, gid } = await sandbox.user(context.user);
  const result = await runScript(sandbox, MAKE_DIRECTORY, { args: [workdir, `${uid}:${gid}`], signal });
  const isChanged = result.exit.code !== UNCHANGED;
  if (isChanged && result.exit.code !== 0) refuse(failureText(result));
  return { context: { ...context, workdir }, isChanged };
}

function refuse(reason: string): never {
  throw new BuildFailure(`failed to create workdir: ${reason}`, undefined);
}
