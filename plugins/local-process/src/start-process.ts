import { type ChildProcess, type SpawnOptions, spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, rmSync } from "node:fs";
import { Socket } from "node:net";
import { SandboxError, messageOf } from "@coppice/core";
import { LocalProcess } from "./local-process.js";
import { openPipe, type Pipe, type Pipes } from "./pipes.js";

/** A program to start on this host. */
export interface Program {
  readonly path: string;
  readonly args: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  /** On the host. */
  readonly cwd: string;
  /** False: stdin is /dev/null. */
  readonly hasInput: boolean;
}

/**
 * Starts a program as the leader of a session of its own.
 *
 * One that cannot be executed is left to a shell to refuse: that gives the exit code (127, 126), the text on
 * stderr and the pid that everybody knows, and no words of the command ever become shell text.
 * @throws SandboxError invalid_argument (arguments too long, a NUL byte), resource_exhausted.
 */
export async function startProcess(program: Program, pipes: Pipes): Promise<LocalProcess> {
  const names = await pipes.take(program.hasInput ? 3 : 2);
  const opened: Pipe[] = [];
  try {
    const [stdout, stderr, stdin] = names.map((name, index) => {
      const pipe = openPipe(name, index < 2 ? "read" : "write");
      opened.push(pipe);
      return pipe;
    }) as [Pipe, Pipe, Pipe | undefined];
    const child = await launch(program, [stdin?.far ?? "ignore", stdout.far, stderr.far]);
    return new LocalProcess(child, {
      stdin: stdin && new Socket({ fd: stdin.near, readable: false, writable: true }),
      stdinName: names[2],
      stdout: new Socket({ fd: stdout.near, readable: true, writable: false }),
      stderr: new Socket({ fd: stderr.near, readable: true, writable: false }),
    });
  } catch (error) {
    for (const { near } of opened) closeSync(near);
    if (names[2] !== undefined) rmSync(names[2], { force: true });
    throw startError(error);
  } finally {
    for (const { far } of opened) closeSync(far);
    for (const name of names.slice(0, 2)) rmSync(name, { force: true });
  }
}

async function launch(program: Program, stdio: (number | "ignore")[]): Promise<StartedChild> {
  const { path, args, env, cwd } = program;
  const options: SpawnOptions = { stdio, env, cwd, detached: true };
  const direct = await attempt(path, args, options);
  if (isStarted(direct)) return direct;
  const refused = await attempt("/bin/sh", ["-c", 'exec "$@"', "sh", path, ...args], options);
  if (isStarted(refused)) return refused;
  throw startError(refused);
}

type StartedChild = ChildProcess & { readonly pid: number };

/** The child, or why the program could not be executed. @throws SandboxError when no program could be. */
async function attempt(
  path: string,
  args: readonly string[],
  options: SpawnOptions,
): Promise<StartedChild | Error> {
  let child: ChildProcess;
  try {
    // An empty path is a program that does not exist; Node takes it for a mistake of the caller.
    child = spawn(path === "" ? "/" : path, args, options);
  } catch (error) {
    throw startError(error);
  }
  if (hasPid(child)) return child;
  const [error] = (await once(child, "error").catch((thrown: unknown) => [thrown])) as [unknown];
  const reason = error instanceof Error ? error : new Error(messageOf(error));
  if (EXHAUSTED.has(codeOf(reason))) throw startError(reason);
  return reason;
}

function hasPid(child: ChildProcess): child is StartedChild {
  return child.pid !== undefined;
}

function isStarted(result: StartedChild | Error): result is StartedChild {
  return !(result instanceof Error);
}

const EXHAUSTED: ReadonlySet<string> = new Set(["EAGAIN", "EMFILE", "ENFILE", "ENOMEM"]);

function startError(error: unknown): SandboxError {
  if (error instanceof SandboxError) return error;
  const code = codeOf(error);
  if (EXHAUSTED.has(code)) {
    return new SandboxError("resource_exhausted", `cannot start another process: ${code}`, { cause: error });
  }
  if (code === "E2BIG")
    return new SandboxError("invalid_argument", "argument list too long", { cause: error });
  if (code === "ERR_INVALID_ARG_VALUE") {
    return new SandboxError("invalid_argument", "a command cannot contain a NUL byte", { cause: error });
  }
  return new SandboxError("internal", "cannot start a process", { cause: error });
}

function codeOf(error: unknown): string {
  return error instanceof Error && "code" in error ? String(error.code) : "";
}
