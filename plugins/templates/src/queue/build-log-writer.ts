import type { Clock, Logger } from "@coppice/core";
import type { LogEntry } from "../model/build-record.js";
import type { LogTable } from "../store/build-table.js";

export interface BuildLogWriterOptions {
  readonly buildId: string;
  readonly logs: () => LogTable;
  /** Most bytes of the log. */
  readonly maxLog: number;
  readonly clock: Clock;
  readonly log: Logger;
}

// Writes of single entries would take longer than the steps that they are about.
const FLUSH_MS = 100;
const FLUSH_ENTRIES = 256;
/** What an entry takes besides its message. */
const ENTRY_BYTES = 64;
const LONGEST_MESSAGE = 16 * 1024;
/** Errors have this much room of their own: the last line tells why a build failed. */
const ERRORS_BYTES = 64 * 1024;

/** Writes the log of one build, in batches, up to a limit. */
export class BuildLogWriter {
  readonly #options: BuildLogWriterOptions;
  #waiting: LogEntry[] = [];
  #written = 0;
  #bytes = 0;
  #isFull = false;
  #isClosed = false;
  #disarm: (() => void) | undefined;

  constructor(options: BuildLogWriterOptions) {
    this.#options = options;
  }

  add({ level, message, step }: Omit<LogEntry, "atMs">): void {
    if (this.#isClosed) return;
    const { clock, maxLog } = this.#options;
    const text = message.length > LONGEST_MESSAGE ? `${message.slice(0, LONGEST_MESSAGE)}…` : message;
    const bytes = Buffer.byteLength(text) + ENTRY_BYTES;
    const most = maxLog + (level === "error" ? ERRORS_BYTES : 0);
    if (this.#bytes + bytes <= most) {
      this.#bytes += bytes;
      this.#keep({ atMs: clock.now(), level, message: text, step });
    } else if (!this.#isFull) {
      this.#isFull = true;
      this.#keep({
        atMs: clock.now(),
        level: "warn",
        message: "The log is full: later lines are left out",
        step,
      });
    }
  }

  /** Writes what waits, so that it can be read. A build goes on without entries that cannot be written. */
  flush(): void {
    this.#disarm?.();
    this.#disarm = undefined;
    const entries = this.#waiting.splice(0);
    if (entries.length === 0) return;
    const { buildId, logs, log } = this.#options;
    try {
      logs().add(buildId, this.#written, entries);
      this.#written += entries.length;
    } catch (error) {
      log.error({ build: buildId, err: error }, "a part of a build's log is lost");
    }
  }

  /** Later entries are left out. */
  close(): void {
    this.flush();
    this.#isClosed = true;
  }

  #keep(entry: LogEntry): void {
    this.#waiting.push(entry);
    if (this.#waiting.length >= FLUSH_ENTRIES) this.flush();
    else this.#disarm ??= this.#options.clock.after(FLUSH_MS, () => this.flush());
  }
}
