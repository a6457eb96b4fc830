import type { Sandbox } from "@coppice/core/backend";
import { BuildFailure } from "../model/build-failure.js";
import { failureText, runScript } from "./guest-run.js";

/** Exit code for a directory that is there. */
const UNCHANGED = 10;

/** Makes a directory and its missing parents, and gives the new ones to a user. Parameters: its path, `uid:gid`. */
const MAKE_DIRECTORY = `
set -e
path=$1 new=
[ ! -d "$path" ] || exit ${UNCHANGED}
while [ ! -d "$path" ]; do new=$path path=\${path%/*}; path=\${path:-/}; done
mkdir -p -- "$1"
chown -R -h -- "$2" "$new"
`;

/**
 * Makes a working directory where it is missing.
 * @param path an absolute one. @returns true when it was missing. @throws BuildFailure, SandboxError for an unknown user
 */
export async function makeWorkdir(
  sandbox: Sandbox,
  { path, user, signal }: { readonly path: string; readonly user: string; readonly signal: AbortSignal },
): Promise<boolean> {
  const { uid, gid } = await sandbox.user(user);
  const result = await runScript(sandbox, MAKE_DIRECTORY, { args: [path, `${uid}:${gid}`], signal });
  if (result.exit.code === UNCHANGED) return false;
  if (result.exit.code !== 0)
    throw new BuildFailure(`failed to create workdir: ${failureText(result)}`, undefined);
  return true;
}
