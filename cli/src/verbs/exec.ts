import { messageOf, printFailure } from "@coppice/core/client";
import type { Sandbox } from "e2b";
import { attach, type Program, type RunningProgram } from "../connection/attach.js";
import type { ServerOptions } from "../connection/connection.js";
import { openSandbox } from "../connection/open-sandbox.js";

interface ExecOptions extends ServerOptions {
  readonly interactive?: true | undefined;
  readonly tty?: true | undefined;
  /** False with `--no-stdin`. */
  readonly stdin: boolean;
  readonly cwd?: string | undefined;
  readonly user?: string | undefined;
  readonly env?: Readonly<Record<string, string>> | undefined;
}

/** 128 and SIGINT. */
const EXIT_INTERRUPTED = 130;

/**
 * Runs a program in a sandbox. Standard input that is no terminal is passed to it; a terminal is with `-i`. With `-t` it
 * has a terminal of its own, of the size of this one. @returns its exit code
 */
export async function exec(
  id: string,
  [cmd = "", ...args]: readonly string[],
  { interactive, tty, stdin, cwd, user, env, ...server }: ExecOptions,
): Promise<number> {
  const sandbox = await openSandbox(id, server);
  const program = { cmd, args, cwd, user, ...(env && { envs: env }) };
  const hasInput = stdin && (interactive === true || !process.stdin.isTTY);
  if (tty) return inTerminal(sandbox, program, hasInput);
  let running: RunningProgram | undefined;
  let isInterrupted = false;
  const onInterrupt = (): void => {
    if (isInterrupted || running === undefined) process.exit(EXIT_INTERRUPTED);
    isInterrupted = true;
    running.terminate().catch((error: unknown) => printFailure(messageOf(error)));
  };
  process.on("SIGINT", onInterrupt);
  process.on("SIGTERM", onInterrupt);
  try {
    return await attach(sandbox, program, {
      ...(hasInput && { input: process.stdin }),
      stdout: process.stdout,
      stderr: process.stderr,
      onStart: (started) => (running = started),
    });
  } finally {
    process.off("SIGINT", onInterrupt);
    process.off("SIGTERM", onInterrupt);
    // The writer of a pipe may keep it open.
    if (hasInput) process.stdin.destroy();
  }
}

/** Starts a login shell in a terminal. */
export function shell(id: string, options: ServerOptions & Pick<ExecOptions, "user">): Promise<number> {
  return exec(id, ["/bin/bash", "-l"], { ...options, interactive: true, tty: true, stdin: true });
}

/** Keys go to the program one by one, Ctrl-C as well: this terminal interprets none. */
async function inTerminal(sandbox: Sandbox, program: Program, hasInput: boolean): Promise<number> {
  const { stdin, stdout, stderr } = process;
  const size = () => ({ cols: stdout.columns ?? 80, rows: stdout.rows ?? 24 });
  let resize: (() => void) | undefined;
  if (hasInput && stdin.isTTY) stdin.setRawMode(true);
  try {
    const envs = { TERM: process.env["TERM"] ?? "xterm", ...program.envs };
    return await attach(
      sandbox,
      { ...program, envs },
      {
        ...(hasInput && { input: stdin }),
        terminal: size(),
        stdout,
        stderr,
        onStart: (running) => {
          // One that ends at this moment needs no size.
          resize = () => void running.resize(size()).catch(() => undefined);
          stdout.on("resize", resize);
        },
      },
    );
  } finally {
    if (resize !== undefined) stdout.off("resize", resize);
    if (hasInput && stdin.isTTY) stdin.setRawMode(false);
    if (hasInput) stdin.destroy();
  }
}
