import { ShellError, type ShellErrorCode } from "../shell/shell-error.js";

/** Beginnings of what git says, in the order in which they are looked for. */
const CAUSES: readonly (readonly [RegExp, ShellErrorCode])[] = [
  [/authentication failed|could not read (username|password)|permission denied \(/i, "GIT_AUTH_FAILED"],
  [/remote branch .* not found/i, "GIT_BRANCH_NOT_FOUND"],
  [/already exists and is not an empty directory/i, "FILE_EXISTS"],
  [
    /repository .*(not found|does not exist)|does not appear to be a git repository/i,
    "GIT_REPOSITORY_NOT_FOUND",
  ],
  [/could not resolve host|unable to access|connection (refused|timed out|reset)/i, "GIT_NETWORK_ERROR"],
];

const MAX_SHOWN_LENGTH = 4096;

export interface FailedClone {
  readonly stderr: string;
  readonly exitCode: number;
  readonly repository: string;
  readonly branch: string | undefined;
  readonly targetDir: string;
}

/** Why a clone failed, without the credentials of its URL. */
export function cloneError({ stderr, exitCode, repository, branch, targetDir }: FailedClone): ShellError {
  const said = withoutCredentials(stderr).slice(0, MAX_SHOWN_LENGTH).trim();
  const code = CAUSES.find(([pattern]) => pattern.test(said))?.[1] ?? "GIT_CLONE_FAILED";
  return new ShellError(code, `Failed to clone repository: ${said}`, {
    repository: withoutCredentials(repository),
    ...(branch !== undefined && { branch }),
    targetDir,
    exitCode,
    stderr: said,
  });
}

export function withoutCredentials(text: string): string {
  return text.replace(/\/\/[^/@\s']*@/g, "//");
}
