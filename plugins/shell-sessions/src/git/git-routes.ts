import { posix } from "node:path";
import { type Clock, type LiveSandbox, SandboxError } from "@coppice/core";
import { exitCodeOf } from "@coppice/core/backend";
import type { Commands, StartCommand } from "@coppice/plugin-commands";
import { z } from "zod";
import { translated } from "../files/file-errors.js";
import { pathField, pathOf } from "../files/session-path.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { OutputCollector } from "../shell/output-collector.js";
import { ShellError, type ShellErrorCode } from "../shell/shell-error.js";
import {
  inputOf,
  sessionIdField,
  sessionIdOf,
  type ShellRequest,
  type ShellRoute,
  success,
  timeout,
} from "../wire/route.js";

const MAX_URL_LENGTH = 2048;
const MAX_STDERR_BYTES = 64 * 1024;

const checkoutBody = z.object({
  repoUrl: z.string(),
  branch: z
    .string()
    .max(255)
    .regex(/^[^-\s\p{Cc}][^\s\p{Cc}]*$/u, "it is no name of a branch")
    .nullish(),
  targetDir: pathField.nullish(),
  depth: z.int().positive().nullish(),
  timeoutMs: timeout.nullish(),
  sessionId: sessionIdField.nullish(),
});

interface GitRoutesOptions {
  readonly commands: Commands;
  readonly config: ShellSessionsConfig;
  readonly clock: Clock;
}

/** Clones repositories inside a sandbox. */
export function gitRoutes({ commands, config, clock }: GitRoutesOptions): readonly ShellRoute[] {
  const git = new Git(commands, clock, config.processGrace);
  return [
    {
      method: "POST",
      path: "/api/git/checkout",
      async handle(request) {
        const { repoUrl, depth, ...input } = inputOf(checkoutBody, request.body);
        checkUrl(repoUrl);
        const branch = input.branch ?? undefined;
        const sessionId = sessionIdOf(input.sessionId ?? undefined, request.headerSession);
        const wanted = input.targetDir ?? nameOf(repoUrl);
        const targetDir = posix.resolve(pathOf(wanted, { sessionId }, request));
        const cwd = posix.dirname(targetDir);
        if (targetDir === cwd)
          throw new ShellError("VALIDATION_FAILED", "Nothing can be cloned into the root");
        await makeDirectory(request.sandbox, cwd);
        const timeoutMs = input.timeoutMs ?? config.gitTimeout;
        const run = (args: readonly string[], at: string) => git.run(request, { args, cwd: at, timeoutMs });
        const options = [
          ...(branch === undefined ? [] : [`--branch=${branch}`]),
          ...(depth ? [`--depth=${depth}`] : []),
        ];
        // Relative: for sandboxes that are directories of the host, absolute paths mean those of the host.
        const clone = ["clone", ...options, "--", repoUrl, posix.basename(targetDir)];
        const { exitCode, stderr } = await run(clone, cwd);
        if (exitCode !== 0) throw cloneError({ stderr, exitCode, repository: repoUrl, branch, targetDir });
        const head = branch ?? (await run(["symbolic-ref", "--short", "HEAD"], targetDir)).stdout.trim();
        return success({ repoUrl, branch: head, targetDir });
      },
    },
  ];
}

/** @throws ShellError INVALID_GIT_URL for what git would take for something else than a repository's address. */
function checkUrl(url: string): void {
  // `helper::address` has git run a program of that name.
  const isWrong = url.trim() === "" || /^-|^[\w+.-]*::|\p{Cc}/u.test(url) || url.length > MAX_URL_LENGTH;
  if (isWrong) throw new ShellError("INVALID_GIT_URL", "Invalid Git URL", { repository: url.slice(0, 200) });
}

function nameOf(url: string): string {
  return (
    url
      .replace(/[?#].*$/, "")
      .replace(/\/+$/, "")
      .replace(/^.*[/:]/, "")
      .replace(/\.git$/, "") || "repository"
  );
}

async function makeDirectory({ runtime }: LiveSandbox, path: string): Promise<void> {
  const made = runtime.files.makeDir(path).catch((error: unknown) => {
    if (!(error instanceof SandboxError) || error.reason !== "path_exists") throw error;
  });
  await translated(path, made);
}

interface GitCommand {
  readonly args: readonly string[];
  readonly cwd: string;
  readonly timeoutMs: number;
}

/** Runs git as a command of the sandbox. */
class Git {
  readonly #commands: Commands;
  readonly #clock: Clock;
  readonly #graceMs: number;

  constructor(commands: Commands, clock: Clock, graceMs: number) {
    this.#commands = commands;
    this.#clock = clock;
    this.#graceMs = graceMs;
  }

  /** Git is ended with its client, and after the time. @throws ShellError GIT_OPERATION_FAILED, GIT_CLONE_FAILED */
  async run({ sandbox, signal }: ShellRequest, { args, cwd, timeoutMs }: GitCommand) {
    const command: StartCommand = {
      path: "git",
      args,
      cwd,
      // Its messages are read.
      environment: { GIT_TERMINAL_PROMPT: "0", LC_ALL: "C" },
      input: "none",
      timeoutMs: timeoutMs + this.#graceMs,
    };
    const started = await this.#commands.start(sandbox, command).catch((error: unknown) => {
      if (!(error instanceof SandboxError) || error.code !== "invalid_argument") throw error;
      throw new ShellError("GIT_OPERATION_FAILED", `Git could not be started: ${error.message}`);
    });
    const output = started.subscribe(sandbox.ended);
    let isOverdue = false;
    // By SIGTERM git removes what it has cloned so far.
    const stop = (): void => void started.kill("SIGTERM", "group").catch(() => undefined);
    const cancel = this.#clock.after(timeoutMs, () => {
      isOverdue = true;
      stop();
    });
    signal.addEventListener("abort", stop, { once: true });
    const collector = new OutputCollector({ maxBytes: MAX_STDERR_BYTES });
    try {
      for await (const piece of output) await collector.add(piece);
    } finally {
      cancel();
      signal.removeEventListener("abort", stop);
    }
    const { exit } = await started.ended;
    if (isOverdue) {
      const url = withoutCredentials(args.at(-2) ?? "");
      throw new ShellError("GIT_CLONE_FAILED", `Git clone timed out after ${timeoutMs} ms`, {
        repository: url,
      });
    }
    const { stdout, stderr } = await collector.result();
    const exitCode = exit === undefined ? 137 : exitCodeOf(exit);
    return { exitCode, stdout: String(await stdout.join()), stderr: String(await stderr.join()) };
  }
}

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

interface FailedClone {
  readonly stderr: string;
  readonly exitCode: number;
  readonly repository: string;
  readonly branch: string | undefined;
  readonly targetDir: string;
}

/** Why a clone failed, without the credentials of its URL. */
function cloneError({ stderr, exitCode, repository, branch, targetDir }: FailedClone): ShellError {
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

function withoutCredentials(text: string): string {
  return text.replace(/\/\/[^/@\s']*@/g, "//");
}
