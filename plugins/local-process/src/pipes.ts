import { execFile } from "node:child_process";
import { closeSync, constants, openSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);
const BATCH = 64;
const REFILL_BELOW = 16;
const LONGEST_PAUSE_MS = 250;

/** The two ends of a pipe: `near` for this process (non-blocking), `far` for the child (blocking). */
export interface Pipe {
  readonly near: number;
  readonly far: number;
}

/**
 * Makes real pipes, which Node cannot: what it gives to children are socket pairs, and on those
 * `/dev/stdin`, `/dev/stdout` and `/dev/stderr` cannot be opened, which scripts do all the time. So named
 * pipes are made in batches, by one `mkfifo` for many.
 */
export class Pipes {
  readonly #makeDirectory: () => Promise<string>;
  #directory: Promise<string> | undefined;
  #ready: string[] = [];
  #refilling: Promise<void> | undefined;
  #made = 0;

  constructor(makeDirectory: () => Promise<string>) {
    this.#makeDirectory = makeDirectory;
  }

  /** Paths of unused named pipes, for `openPipe`. */
  async take(count: number): Promise<readonly string[]> {
    while (this.#ready.length < count) await this.#refill();
    const taken = this.#ready.splice(0, count);
    // What fails here fails again, and is reported, when pipes run out.
    if (this.#ready.length < REFILL_BELOW) this.#refill().catch(() => undefined);
    return taken;
  }

  /** Makes the first batch. @throws Error that says why pipes cannot be made here. */
  async prepare(): Promise<void> {
    if (this.#ready.length === 0) await this.#refill();
  }

  /** Removes what is unused. */
  async close(): Promise<void> {
    await this.#refilling?.catch(() => undefined);
    const directory = await this.#directory?.catch(() => undefined);
    this.#ready = [];
    this.#directory = undefined;
    if (directory !== undefined) await rm(directory, { recursive: true, force: true });
  }

  #refill(): Promise<void> {
    this.#refilling ??= this.#make().finally(() => (this.#refilling = undefined));
    return this.#refilling;
  }

  async #make(): Promise<void> {
    this.#directory ??= this.#makeDirectory();
    const directory = await this.#directory;
    const paths = Array.from({ length: BATCH }, () => join(directory, String(this.#made++)));
    await run("mkfifo", ["-m", "600", ...paths]);
    this.#ready.push(...paths);
  }
}

/** Opens a named pipe, for this process to read from or to write to. Its name is the caller's to unlink. */
export function openPipe(path: string, direction: "read" | "write"): Pipe {
  const opened: number[] = [];
  const open = (flags: number): number => {
    const descriptor = openSync(path, flags);
    opened.push(descriptor);
    return descriptor;
  };
  try {
    // A reader that does not block comes first: without one, opening to write fails or waits for ever.
    const reader = open(constants.O_RDONLY | constants.O_NONBLOCK);
    if (direction === "read") return { near: reader, far: open(constants.O_WRONLY) };
    const near = open(constants.O_WRONLY | constants.O_NONBLOCK);
    // The child's end must block, and the flag belongs to the open file: so it gets one of its own.
    const far = open(constants.O_RDONLY);
    closeSync(reader);
    return { near, far };
  } catch (error) {
    for (const descriptor of opened) closeSync(descriptor);
    throw error;
  }
}

/**
 * Tells late readers that a pipe has ended. A program that opens `/dev/stdin` opens the named pipe anew,
 * and then the kernel has it wait for a writer, although there was one. A writer that comes and goes
 * releases it: it reads what is there, and the end.
 * @returns what stops it; it stops by itself when nobody can read the pipe any more.
 */
export function announceEnd(path: string): () => void {
  let timer: NodeJS.Timeout | undefined;
  let pauseMs = 10;
  const announce = (): void => {
    try {
      closeSync(openSync(path, constants.O_WRONLY | constants.O_NONBLOCK));
    } catch {
      return;
    }
    timer = setTimeout(announce, pauseMs).unref();
    pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS);
  };
  announce();
  return () => clearTimeout(timer);
}
