import { mkdir, readdir, readFile, rename, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { z } from "zod";
import type { Launcher } from "../launcher/launcher.js";

/** Ids of a store below a sandbox's files, topmost first. */
export type Chain = readonly string[];

interface LayerStoreOptions<Facts> {
  readonly directory: string;
  readonly launcher: Launcher;
  readonly record: string;
  readonly schema: z.ZodType<Facts>;
  /** Chains of everything outside of the store that depends on it. */
  readonly chainsInUse: () => Promise<readonly Chain[]>;
  readonly onFreed?: (facts: Facts) => Promise<void>;
}

const REMOVED = "removed";
const MAKING = ".making";

/**
 * Directories with read-only layers for sandboxes, each complete or not there. A removed one stays while something
 * depends on it.
 */
export class LayerStore<Facts extends { readonly chain: Chain }> {
  readonly #options: LayerStoreOptions<Facts>;
  readonly #removed = new Set<string>();
  /** Ids that `hold` was called for, once for each call. */
  readonly #held: string[] = [];
  #collected: Promise<void> = Promise.resolve();

  constructor(options: LayerStoreOptions<Facts>) {
    this.#options = options;
  }

  async open(): Promise<void> {
    const { directory } = this.#options;
    await mkdir(directory, { recursive: true, mode: 0o700 });
    for (const id of await readdir(directory)) {
      const mark = await stat(join(directory, id, REMOVED)).catch(() => undefined);
      if (mark !== undefined) this.#removed.add(id);
    }
  }

  pathOf(id: string): string {
    return join(this.#options.directory, id);
  }

  /** Makes one in a directory that gets its name at the end. When `fill` rejects, nothing is left. */
  async make(id: string, fill: (directory: string) => Promise<Facts>): Promise<void> {
    const making = `${this.pathOf(id)}${MAKING}`;
    await mkdir(making, { mode: 0o700 });
    try {
      await this.#write(making, await fill(making));
      await rename(making, this.pathOf(id));
    } catch (error) {
      await this.#options.launcher.remove(making);
      throw error;
    }
  }

  /** Makes one of a whole directory on the same file system, at once. */
  async take(id: string, directory: string, facts: Facts): Promise<void> {
    await this.#write(directory, facts);
    await rename(directory, this.pathOf(id));
  }

  /** Keeps one, with those below it, while something is made that will depend on it. */
  hold(id: string | undefined): Disposable {
    if (id !== undefined) this.#held.push(id);
    return {
      [Symbol.dispose]: () => {
        if (id !== undefined) this.#held.splice(this.#held.indexOf(id), 1);
      },
    };
  }

  /** Undefined when it is missing, incomplete or removed. */
  async find(id: string): Promise<Facts | undefined> {
    return this.#removed.has(id) ? undefined : this.#read(id);
  }

  /** All that were not removed, including unfinished ones. */
  async list(): Promise<readonly string[]> {
    const names = await readdir(this.#options.directory);
    return names.filter((name) => !this.#removed.has(name)).map((name) => name.replace(MAKING, ""));
  }

  /** Facts of all complete ones, with those that stay only for others. */
  async all(): Promise<readonly Facts[]> {
    const found = await Promise.all((await this.#complete()).map((id) => this.#read(id)));
    return found.filter((facts) => facts !== undefined);
  }

  async remove(id: string): Promise<void> {
    await this.#options.launcher.remove(`${this.pathOf(id)}${MAKING}`);
    if ((await stat(this.pathOf(id)).catch(() => undefined)) !== undefined) {
      await writeFile(join(this.pathOf(id), REMOVED), "");
      this.#removed.add(id);
    }
    await this.collect();
  }

  collect(): Promise<void> {
    // One after the other: concurrent removals of the same tree fail.
    const collected = this.#collected.then(() => this.#collect());
    this.#collected = collected.catch(() => undefined);
    return collected;
  }

  async #collect(): Promise<void> {
    if (this.#removed.size === 0) return;
    const { launcher, chainsInUse, onFreed } = this.#options;
    const removed = [...this.#removed];
    const chains = [...(await chainsInUse())];
    for (const id of await this.#complete()) {
      const isNeeded = !this.#removed.has(id) || this.#held.includes(id);
      if (isNeeded) chains.push((await this.#read(id))?.chain ?? []);
    }
    const used = new Set([...chains.flat(), ...this.#held]);
    for (const id of removed.filter((each) => !used.has(each))) {
      const facts = await this.#read(id);
      await launcher.remove(this.pathOf(id));
      this.#removed.delete(id);
      if (facts !== undefined) await onFreed?.(facts);
    }
  }

  async #complete(): Promise<readonly string[]> {
    return (await readdir(this.#options.directory)).filter((name) => !name.endsWith(MAKING));
  }

  async #write(directory: string, facts: Facts): Promise<void> {
    await writeFile(join(directory, this.#options.record), JSON.stringify(facts), { mode: 0o600 });
  }

  async #read(id: string): Promise<Facts | undefined> {
    const path = join(this.pathOf(id), this.#options.record);
    const text = await readFile(path, "utf8").catch(() => undefined);
    return text === undefined ? undefined : this.#options.schema.parse(JSON.parse(text));
  }
}
