import { constants } from "node:os";
import type { Exit, Signal } from "@coppice/core/backend";

/** The end of a process in the words of E2B's envd. */
export interface ExitReport {
  /** -1 for a process that a signal ended. */
  readonly exitCode: number;
  readonly exited: boolean;
  /** `exit status <n>` or `signal: <name>`, never empty: one client reads nothing else. */
  readonly status: string;
  /** The status of a failure; undefined for exit code 0. */
  readonly error: string | undefined;
}

// As Go's runtime spells them; signals above 15 have no name there.
const SIGNAL_NAMES: Readonly<Partial<Record<Signal, string>>> = {
  SIGHUP: "hangup",
  SIGINT: "interrupt",
  SIGQUIT: "quit",
  SIGILL: "illegal instruction",
  SIGTRAP: "trace/breakpoint trap",
  SIGABRT: "aborted",
  SIGBUS: "bus error",
  SIGFPE: "floating point exception",
  SIGKILL: "killed",
  SIGUSR1: "user defined signal 1",
  SIGSEGV: "segmentation fault",
  SIGUSR2: "user defined signal 2",
  SIGPIPE: "broken pipe",
  SIGALRM: "alarm clock",
  SIGTERM: "terminated",
};

export function describeExit(exit: Exit): ExitReport {
  if (exit.signal === undefined) {
    const status = `exit status ${exit.code}`;
    return { exitCode: exit.code, exited: true, status, error: exit.code === 0 ? undefined : status };
  }
  const name = SIGNAL_NAMES[exit.signal] ?? `signal ${constants.signals[exit.signal]}`;
  const status = `signal: ${name}${exit.coreDumped === true ? " (core dumped)" : ""}`;
  return { exitCode: -1, exited: false, status, error: status };
}
