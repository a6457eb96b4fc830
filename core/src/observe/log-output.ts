import { constants, openSync, write, writeSync } from "node:fs";

/** What waits for a slow reader; later lines are dropped. */
const MOST_WAITING_BYTES = 8 * 1024 * 1024;
/** Written at one time, if a line is no longer. */
const MOST_AT_ONCE_BYTES = 256 * 1024;
const RETRY_MS = 100;
/** Longest delay of the end of the process by a reader that takes nothing. */
const FLUSH_MS = 1_000;

/**
 * Destination of a log on a file descriptor. A reader that stalls holds up no request, and the end of the process for a
 * second; one that has gone holds up nothing. pino's own destination keeps all lines that wait, and its flush at the end
 * repeats a failed write for ever (sonic-boom 4.2).
 */
export class LogOutput {
  readonly #descriptor: number;
  /** Not written yet, nor being written. */
  readonly #waiting: Buffer[] = [];
  #waitingBytes = 0;
  #isWriting = false;
  #isGone = false;
  #dropped = 0;

  constructor(descriptor: number) {
    this.#descriptor = descriptor;
  }

  /** @param line with its line feed. */
  write(line: string): void {
    if (this.#isGone) return;
    const bytes = Buffer.from(line);
    if (this.#waitingBytes + bytes.length > MOST_WAITING_BYTES) {
      this.#dropped += 1;
      return;
    }
    this.#waiting.push(bytes);
    this.#waitingBytes += bytes.length;
    if (!this.#isWriting) this.#writeSome();
  }

  /** Writes what waits, as far as its reader takes it. pino calls it after a fatal line. */
  flushSync(): void {
    const untilMs = performance.now() + FLUSH_MS;
    while (this.#waiting.length > 0) {
      const batch = this.#take();
      try {
        this.#putBack(batch.subarray(writeSync(this.#descriptor, batch)));
      } catch (error) {
        if (!isBusy(error) || performance.now() > untilMs) {
          this.#giveUp();
          return;
        }
        this.#putBack(batch);
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, RETRY_MS);
      }
    }
  }

  #writeSome(): void {
    this.#isWriting = this.#waiting.length > 0;
    if (!this.#isWriting) return;
    const batch = this.#take();
    write(this.#descriptor, batch, (error, written) => {
      if (error !== null && !isBusy(error)) {
        this.#giveUp();
        return;
      }
      this.#putBack(batch.subarray(error === null ? written : 0));
      if (error === null) {
        this.#tellDropped();
        this.#writeSome();
      } else setTimeout(() => this.#writeSome(), RETRY_MS).unref();
    });
  }

  #tellDropped(): void {
    if (this.#dropped === 0 || this.#waitingBytes > MOST_WAITING_BYTES / 2) return;
    const msg = `${this.#dropped} lines of the log were dropped: its reader takes them too slowly`;
    const line = Buffer.from(`${JSON.stringify({ level: 40, time: new Date().toISOString(), msg })}\n`);
    this.#dropped = 0;
    this.#waiting.push(line);
    this.#waitingBytes += line.length;
  }

  #take(): Buffer {
    let count = 1;
    let bytes = this.#waiting[0]?.length ?? 0;
    for (; count < this.#waiting.length; count += 1) {
      const { length = 0 } = this.#waiting[count] ?? {};
      if (bytes + length > MOST_AT_ONCE_BYTES) break;
      bytes += length;
    }
    this.#waitingBytes -= bytes;
    return Buffer.concat(this.#waiting.splice(0, count));
  }

  #putBack(rest: Buffer): void {
    if (rest.length === 0) return;
    this.#waiting.unshift(rest);
    this.#waitingBytes += rest.length;
  }

  #giveUp(): void {
    this.#isGone = true;
    this.#waiting.length = 0;
    this.#waitingBytes = 0;
  }
}

/**
 * Opens what a descriptor leads to a second time, so that a write to a full pipe fails rather than waits: the descriptor
 * itself is shared with other processes. @returns the descriptor itself for a socket, or where the system has no such files.
 */
export function ownDescriptor(descriptor: number): number {
  try {
    const { O_WRONLY, O_APPEND, O_NONBLOCK } = constants;
    return openSync(`/proc/self/fd/${descriptor}`, O_WRONLY | O_APPEND | O_NONBLOCK);
  } catch {
    return descriptor;
  }
}

function isBusy(error: unknown): boolean {
  return ["EAGAIN", "EBUSY"].includes((error as NodeJS.ErrnoException).code ?? "");
}
