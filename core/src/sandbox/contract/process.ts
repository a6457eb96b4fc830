/** PATH of programs that nobody has chosen one for. */
export const DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/** Names of signals as `kill -l` prints them, with `SIG`. */
export type Signal = NodeJS.Signals;

export interface TerminalSize {
  readonly columns: number;
  readonly rows: number;
}

/** A program to start inside a sandbox. No shell is involved unless `path` names one. */
export interface Command {
  /** An absolute path inside the sandbox, or a name that is looked up in `env.PATH`. */
  readonly path: string;
  readonly args: readonly string[];
  /** The complete environment: nothing is inherited from the server. */
  readonly env: Readonly<Record<string, string>>;
  /** Absolute path inside the sandbox; the user's home when absent. */
  readonly cwd?: string | undefined;
  /** A user of the sandbox; its default user when absent. */
  readonly user?: string | undefined;
  /** Size of the command's terminal, which is its stdin, stdout and stderr. */
  readonly terminal?: TerminalSize | undefined;
  /** `"pipe"` (default): `write` reaches its stdin. `"none"`: stdin is empty from the start. */
  readonly input?: "pipe" | "none" | undefined;
  /**
   * Text of the caller, at most 4 095 bytes, that `adoption` returns after a restart of the server. It is kept out of
   * the sandbox's reach. By convention `<plugin>:<JSON>`.
   */
  readonly label?: string | undefined;
  /**
   * Asks for `keeping`: a backend with `adoption` then keeps output until it is confirmed. False when absent; a backend
   * may ignore it.
   */
  readonly keepsOutput?: boolean | undefined;
}

/** Output that is kept until it is confirmed: after an abrupt end of this server the next one gets the rest again. */
export interface OutputKeeping {
  /** Bytes that the process wrote before the first byte of `output`. */
  readonly offset: number;
  /** All output before this offset is safe. A process waits when too much is not confirmed. */
  confirm(offset: number): void;
  /** Its end is safe, too: no later server is to learn of it. Without this call the next server adopts it. */
  forget(): void;
}

/** A piece of a process's output: raw bytes, which may end inside a character. */
export interface Output {
  readonly stream: "stdout" | "stderr" | "terminal";
  readonly data: Uint8Array;
  /** Frees the data at once, for a reader who is the last one. Without a call the collector does. */
  readonly release?: (() => void) | undefined;
}

/**
 * Resource that a sandbox lacked, and its limit in words: `1024 MiB`. `memory`: the kernel killed a process; `processes`:
 * one could not be started; `disk`: its backend ended it.
 */
export interface ResourceShortage {
  readonly resource: "memory" | "processes" | "disk";
  readonly limit: string;
}

/** End of a process: by itself, or by a signal. `shortage`: what its sandbox lacked while it ran, as a likely reason. */
export type Exit = { readonly shortage?: ResourceShortage | undefined } & (
  | { readonly code: number; readonly signal?: undefined }
  | {
      readonly signal: Signal;
      readonly code?: undefined;
      readonly coreDumped?: boolean;
      /** Nobody saw it: the sandbox's agent, or its first process, ended first and took the process along. */
      readonly isAssumed?: boolean;
    }
);

/** What a sandbox lacked when a process failed, behind its status: ` (out of memory: limit 1024 MiB)`, or nothing. */
export function shortageText({ shortage }: Pick<Exit, "shortage">): string {
  return shortage === undefined ? "" : ` (out of ${shortage.resource}: limit ${shortage.limit})`;
}

/** A running (or ended) process of a sandbox. */
export interface Process {
  /** As seen inside the sandbox. */
  readonly pid: number;
  /**
   * Output, in order per stream. A slow reader slows the process. Iterate once; leaving the loop early discards the
   * rest, so that the process never blocks on it. It ends when every holder of the pipes is gone or the process was
   * killed, and it never throws.
   */
  readonly output: AsyncIterable<Output>;
  /**
   * Sends bytes to stdin or the terminal; resolves when they were accepted.
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
  /** Settles once the process was reaped, even while its output is still open. Never rejects. */
  readonly exit: Promise<Exit>;
  /** Present when its output is kept; all of it has to be confirmed then. */
  readonly keeping?: OutputKeeping | undefined;
}

/** A process of an earlier server whose end no server has handled yet. */
export interface AdoptedProcess extends Process {
  /** Label of its command; empty without one. */
  readonly label: string;
}
