import { mkdirSync } from "node:fs";
import { readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import type { LiveSandbox, Logger } from "@coppice/core";
import { replaceFile } from "@coppice/core/backend";
import { z } from "zod";
import { kernelPorts } from "../programs/kernel-process.js";

const connection = z.object({
  /** In the label of its process. */
  id: z.string(),
  key: z.string(),
  /** Identifies the server's own requests. */
  session: z.string(),
  ports: kernelPorts,
});

/** Of Jupyter's clients: an open document and its kernel. */
const session = z.object({
  id: z.string(),
  path: z.string(),
  name: z.string(),
  type: z.string(),
  kernelId: z.string(),
});

const notes = z.object({
  /** Oldest first. */
  contexts: z.array(
    z.object({
      id: z.string(),
      language: z.string(),
      cwd: z.string(),
      isDefault: z.boolean(),
      /** Absent for the account of all kernels. */
      userName: z.string().optional(),
      kernel: connection.optional(),
    }),
  ),
  sessions: z.array(session),
});

export type KernelConnection = z.infer<typeof connection>;

export type NotebookSession = Readonly<z.infer<typeof session>>;

/** Facts that a later server needs to adopt a sandbox's kernels. */
export type Notes = z.infer<typeof notes>;

const SUFFIX = ".json";

/**
 * The notes on each sandbox that can outlive the server, in a file that only the server's user may read: a bearer of a
 * kernel's key can act as the server. Sandboxes never see them.
 */
export class KernelNotes {
  readonly #dataDir: () => string;
  readonly #log: Logger;

  /** @param dataDir called where there is something to note. */
  constructor(dataDir: () => string, log: Logger) {
    this.#dataDir = dataDir;
    this.#log = log;
  }

  /** Undefined for a sandbox that ends with the server. */
  of(sandbox: LiveSandbox): SandboxNotes | undefined {
    if (sandbox.runtime.adoption === undefined) return undefined;
    const file = join(this.#directory(), sandbox.record.id + SUFFIX);
    return new SandboxNotes(file, this.#log.child({ sandbox: sandbox.record.id }));
  }

  /** Removes the notes on all other sandboxes. */
  async keepOnly(sandboxes: readonly LiveSandbox[]): Promise<void> {
    const kept = new Set(sandboxes.map(({ record }) => record.id + SUFFIX));
    const directory = this.#directory();
    const names = (await readdir(directory)).filter((name) => !kept.has(name));
    await Promise.all(names.map((name) => rm(join(directory, name), { force: true })));
  }

  #directory(): string {
    const directory = join(this.#dataDir(), "kernels");
    mkdirSync(directory, { recursive: true, mode: 0o700 });
    return directory;
  }
}

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

  /** The last server's notes; empty when they are missing or unusable. */
  async read(): Promise<Notes> {
    try {
      this.#notes = notes.parse(JSON.parse(await readFile(this.#file, "utf8")));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ENOENT")
        this.#log.warn({ err: error }, "the notes on a sandbox's kernels are of no use");
    }
    return this.#notes;
  }

  /** Replaces parts of the notes. Resolves when they are safe on disk; a failure is logged. */
  update(change: Partial<Notes>): Promise<void> {
    if (this.#isClosed) return this.#writing;
    this.#notes = { ...this.#notes, ...change };
    this.#writing = this.#waiting ??= this.#writing.then(() => {
      this.#waiting = undefined;
      return this.#write();
    });
    return this.#writing;
  }

  /** Writes the rest; afterwards the notes do not change. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#writing;
  }

  async remove(): Promise<void> {
    await this.close();
    await rm(this.#file, { force: true });
  }

  async #write(): Promise<void> {
    try {
      await replaceFile(this.#file, JSON.stringify(this.#notes), { mode: 0o600 });
    } catch (error) {
      this.#log.error({ err: error }, "the notes on a sandbox's kernels cannot be written");
    }
  }
}
