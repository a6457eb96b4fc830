import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { PYTHON } from "../host/python.js";
import { COPPICE } from "./server-process.js";

/** Output and exit code of a `coppice` command. */
export interface CommandEnd {
  readonly code: number | null;
  readonly stdout: Buffer;
  readonly stderr: string;
}

/** `coppice …` as a process of its own. */
export interface RunningCommand {
  readonly child: ChildProcess;
  /** Output until now. */
  readonly printed: () => string;
  readonly end: Promise<CommandEnd>;
}

/** Runs a program in a terminal; SIGUSR1 makes that one of 101 columns and 33 rows. */
const IN_TERMINAL = `
import fcntl, os, pty, signal, struct, sys, termios
terminal = []
def read(fd):
    terminal[:] = [fd]
    return os.read(fd, 65536)
def resize(*_):
    fcntl.ioctl(terminal[0], termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
signal.signal(signal.SIGUSR1, resize)
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:], read)))
`;

/** Starts `coppice` with these arguments and, over this process's own, this environment. */
export function startCoppice(
  args: readonly string[],
  environment: Readonly<Record<string, string>> = {},
  stdin: "ignore" | "pipe" = "ignore",
): RunningCommand {
  return startProgram([process.execPath, COPPICE, ...args], environment, stdin);
}

/** As `startCoppice`, in a terminal: what it prints is on stdout, with the line ends of a terminal. */
export function startCoppiceInTerminal(
  args: readonly string[],
  environment: Readonly<Record<string, string>> = {},
  stdin: "ignore" | "pipe" = "ignore",
): RunningCommand {
  return startProgram([PYTHON, "-c", IN_TERMINAL, process.execPath, COPPICE, ...args], environment, stdin);
}

function startProgram(
  [program = "", ...args]: readonly string[],
  environment: Readonly<Record<string, string>>,
  stdin: "ignore" | "pipe" = "ignore",
): RunningCommand {
  const child = spawn(program, args, {
    env: { ...process.env, ...environment },
    stdio: [stdin, "pipe", "pipe"],
  });
  const chunks = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
  for (const name of ["stdout", "stderr"] as const) {
    child[name]?.on("data", (chunk: Buffer) => chunks[name].push(chunk));
  }
  const printed = (): string => Buffer.concat(chunks.stdout).toString();
  const end = once(child, "close").then(([code]): CommandEnd => ({
    code: code as number | null,
    stdout: Buffer.concat(chunks.stdout),
    stderr: Buffer.concat(chunks.stderr).toString(),
  }));
  return { child, printed, end };
}
