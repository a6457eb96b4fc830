import { constants } from "node:os";
import { type Exit, shortageText } from "./process.js";

/** The end of a process in the words of E2B's envd. */
export interface ExitReport {
  /** -1 for a process that a signal ended. */
  readonly exitCode: number;
  readonly exited: boolean;
  /** `exit status <n>` or `signal: <name>`, never empty: one client reads nothing else. */
  readonly status: string;
  /** The status of a failure, and what its sandbox lacked; undefined for exit code 0. */
  readonly error: string | undefined;
}

/** As Go's runtime spells them, from signal 1 of Linux on; those above 15 have no name there. */
const SIGNAL_NAMES = new Map([
  ["SIGHUP", "hangup"],
  ["SIGINT", "interrupt"],
  ["SIGQUIT", "quit"],
  ["SIGILL", "illegal instruction"],
  ["SIGTRAP", "trace/breakpoint trap"],
  ["SIGABRT", "aborted"],
  ["SIGBUS", "bus error"],
  ["SIGFPE", "floating point exception"],
  ["SIGKILL", "killed"],
  ["SIGUSR1", "user defined signal 1"],
  ["SIGSEGV", "segmentation fault"],
  ["SIGUSR2", "user defined signal 2"],
  ["SIGPIPE", "broken pipe"],
  ["SIGALRM", "alarm clock"],
  ["SIGTERM", "terminated"],
]);

export function describeExit(exit: Exit): ExitReport {
  if (exit.signal === undefined) {
    const status = `exit status ${exit.code}`;
    const error = exit.code === 0 ? undefined : status + shortageText(exit);
    return { exitCode: exit.code, exited: true, status, error };
  }
  const name = SIGNAL_NAMES.get(exit.signal) ?? `signal ${constants.signals[exit.signal]}`;
  const status = `signal: ${name}${exit.coreDumped === true ? " (core dumped)" : ""}`;
  return { exitCode: -1, exited: false, status, error: status + shortageText(exit) };
}

/** The end in words, and what the sandbox lacked. */
export function exitText(exit: Exit): string {
  return describeExit(exit).status + shortageText(exit);
}

/** As a shell has it: 128 and the number of the signal. */
export function exitCodeOf({ code, signal }: Exit): number {
  return code ?? 128 + constants.signals[signal];
}

/** The exit code of a shell for a status of `describeExit`; 128 for an unknown signal. */
export function exitCodeOfStatus(status: string): number {
  const name = status.replace(/^signal: /, "").replace(/ \(core dumped\)$/, "");
  const numbered = /^signal (\d+)$/.exec(name);
  return 128 + (numbered === null ? [...SIGNAL_NAMES.values()].indexOf(name) + 1 : Number(numbered[1]));
}
