/** Names of signals as `kill -l` prints them, with the `SIG`. */
export type Signal = NodeJS.Signals;

/** Size of a terminal in character cells. */
export interface TerminalSize {
  readonly columns: number;
  readonly rows: number;
}

/** A program to start inside a sandbox. No shell is involved unless `path` names one. */
export interface Command {
  /** The program: an absolute path inside the sandbox, or a name looked up in `env.PATH`. */
  readonly path: string;
  /** Arguments after the program's own name. */
  readonly args: readonly string[];
  /** The complete environment: nothing else is inherited, the server's least of all. */
  readonly env: Readonly<Record<string, string>>;
  /** Absolute path inside the sandbox; the user's home when absent. */
  readonly cwd?: string | undefined;
  /** A user of the sandbox; its default user when absent. */
  readonly user?: string | undefined;
  /** Give the command a terminal of this size as stdin, stdout and stderr. */
  readonly terminal?: TerminalSize | undefined;
  /** `"pipe"` (default): `write` reaches its stdin. `"none"`: stdin is empty from the start. */
  readonly input?: "pipe" | "none" | undefined;
  /**
   * Text of the caller that is read again after a restart of the server, at most 4 095 bytes: kept outside of
   * the sandbox's reach and handed back by `adoption`. By convention `<plugin>:<JSON>`.
   */
  readonly label?: string | undefined;
}

/** A piece of what a process wrote: raw bytes, which may end inside a character. */
export interface Output {
  readonly stream: "stdout" | "stderr" | "terminal";
  readonly data: Uint8Array;
}

/** How a process ended: by itself, or by a signal. */
export type Exit =
  | { readonly code: number; readonly signal?: undefined }
  | { readonly signal: Signal; readonly code?: undefined; readonly coreDumped?: boolean };

/** A running (or ended) process of a sandbox. */
export interface Process {
  /** As seen inside the sandbox. */
  readonly pid: number;
  /**
   * Output, in order per stream. Pulled: a slow reader slows the process. It can be
   * iterated once; leaving the loop early discards the rest, so that the process never blocks on it.
   * It ends when every holder of the pipes is gone or the process was killed, and it never throws.
   */
  readonly output: AsyncIterable<Output>;
  /**
   * Sends bytes to stdin or the terminal; resolves when they were taken.
   * @throws SandboxError failed_precondition when there is no open stdin.
   */
  write(data: Uint8Array): Promise<void>;
  /** Ends stdin. A second call does nothing. */
  closeInput(): Promise<void>;
  /**
   * @param scope the process alone (default) or its whole process group.
   * @throws SandboxError not_found when it has already ended.
   */
  kill(signal: Signal, scope?: "process" | "group"): Promise<void>;
  /** @throws SandboxError failed_precondition when it has no terminal. */
  resize(size: TerminalSize): Promise<void>;
  /** Settles once the process was reaped, also while its output is still open. Never rejects. */
  readonly exit: Promise<Exit>;
}

/** A process that was started for an earlier server and has not been seen to its end. */
export interface AdoptedProcess extends Process {
  /** As its command had it; empty where it had none. */
  readonly label: string;
}
