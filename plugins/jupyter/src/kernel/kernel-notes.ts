import { randomBytes } from "node:crypto";
import { mkdirSync } from "node:fs";
import { readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { LiveSandbox, Logger } from "@coppice/core";
import { z } from "zod";
import { KernelPorts } from "../programs/kernel-process.js";

const connection = z.object({
  /** In the label of its process. */
  id: z.string(),
  /** Signs every message. */
  key: z.string(),
  /** By which the server's own requests are told from those of others. */
  session: z.string(),
  ports: KernelPorts,
});

const notes = z.object({
  /** Oldest first. */
  contexts: z.array(
    z.object({
      id: z.string(),
      language: z.string(),
      /** Absolute path inside the sandbox. */
      cwd: z.string(),
      /** Code that names only its language runs here. */
      isDefault: z.boolean(),
      kernel: connection.optional(),
    }),
  ),
  /** Of Jupyter's clients. */
  sessions: z.array(
    z.object({
      id: z.string(),
      path: z.string(),
      name: z.string(),
      type: z.string(),
      kernelId: z.string(),
    }),
  ),
});

/** Connection data of a running kernel. */
export type KernelConnection = z.infer<typeof connection>;

/** Facts by which a later server takes over the kernels of a sandbox. */
export type Notes = z.infer<typeof notes>;

export interface KernelNotesOptions {
  /** Where notes are kept, asked for when it is first needed. */
  readonly directory: () => string;
  readonly log: Logger;
}

const SUFFIX = ".json";

/**
 * The notes on every sandbox that can outlive the server: a file each, which only the server's user may read, because
 * whoever has a kernel's key can speak for the server. The sandbox itself gets to see none of it.
 */
export class KernelNotes {
  readonly #options: KernelNotesOptions;
  #directory: string | undefined;

  constructor(options: KernelNotesOptions) {
    this.#options = options;
  }

  /** Undefined for a sandbox that ends with the server: nothing is kept of it. */
  of(sandbox: LiveSandbox): SandboxNotes | undefined {
    if (sandbox.runtime.adoption === undefined) return undefined;
    const file = join(this.#directoryMade(), sandbox.record.id + SUFFIX);
    return new SandboxNotes(file, this.#options.log.child({ sandbox: sandbox.record.id }));
  }

  /** Removes the notes on every sandbox but these. */
  async keepOnly(sandboxes: readonly LiveSandbox[]): Promise<void> {
    const kept = new Set(sandboxes.map(({ record }) => record.id + SUFFIX));
    const directory = this.#directoryMade();
    const names = (await readdir(directory)).filter((name) => !kept.has(name));
    await Promise.all(names.map((name) => rm(join(directory, name), { force: true })));
  }

  #directoryMade(): string {
    if (this.#directory === undefined) {
      this.#directory = join(this.#options.directory(), "kernels");
      mkdirSync(this.#directory, { recursive: true, mode: 0o700 });
    }
    return this.#directory;
  }
}

/** The notes on one sandbox. */
export class SandboxNotes {
  readonly #file: string;
  readonly #log: Logger;
  #notes: Notes = { contexts: [], sessions: [] };
  /** A write that has not begun. */
  #waiting: Promise<void> | undefined;
  #writing: Promise<void> = Promise.resolve();
  #isClosed = false;

  constructor(file: string, log: Logger) {
    this.#file = file;
    this.#log = log;
  }

  get sessions(): Notes["sessions"] {
    return this.#notes.sessions;
  }

  /** Reads what the last server wrote; empty where it wrote nothing, or nothing of use. */
  async read(): Promise<Notes> {
    try {
      this.#notes = notes.parse(JSON.parse(await readFile(this.#file, "utf8")));
    } catch (error) {
      const isAbsent = error instanceof Error && "code" in error && error.code === "ENOENT";
      if (!isAbsent) this.#log.warn({ err: error }, "the notes on a sandbox's kernels are of no use");
    }
    return this.#notes;
  }

  /** Replaces parts of the notes. Resolves when they would survive the server; a failure is logged. */
  update(change: Partial<Notes>): Promise<void> {
    if (this.#isClosed) return this.#writing;
    this.#notes = { ...this.#notes, ...change };
    this.#waiting ??= this.#writing.then(() => {
      this.#waiting = undefined;
      return this.#write();
    });
    this.#writing = this.#waiting;
    return this.#waiting;
  }

  /** Writes what is left; from here on the notes stay as they are. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#writing;
  }

  /** The sandbox has ended. */
  async remove(): Promise<void> {
    await this.close();
    await rm(this.#file, { force: true });
  }

  async #write(): Promise<void> {
    const unfinished = `${this.#file}.${randomBytes(4).toString("hex")}`;
    try {
      await writeFile(unfinished, JSON.stringify(this.#notes), { mode: 0o600 });
      await rename(unfinished, this.#file);
    } catch (error) {
      this.#log.error({ err: error }, "the notes on a sandbox's kernels cannot be written");
      await rm(unfinished, { force: true }).catch(() => undefined);
    }
  }
}
