import { mkdir, readdir, readFile, rename, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { SandboxError } from "@coppice/core";
import type { SnapshotId } from "@coppice/core/backend";
import { z } from "zod";
import type { Launcher } from "../launcher/launcher.js";

/** Snapshots below a sandbox's files, topmost first. */
export type SnapshotChain = readonly SnapshotId[];

const snapshotFacts = z.object({ template: z.string(), chain: z.array(z.string()).readonly() }).readonly();

export interface SnapshotStoreOptions {
  readonly directory: string;
  readonly launcher: Launcher;
  /** Chains of all sandboxes. */
  readonly chainsInUse: () => Promise<readonly SnapshotChain[]>;
}

// The options of a mount must fit into one page, and each layer adds a path.
const MAX_DEPTH = 16;
const RECORD = "snapshot.json";
const REMOVED = "removed";
const MAKING = ".making";

/**
 * Copies of sandboxes' changes, each a read-only layer for other sandboxes. A removed snapshot stays while a sandbox or
 * another snapshot depends on it.
 */
export class SnapshotStore {
  readonly #options: SnapshotStoreOptions;
  #collected: Promise<void> = Promise.resolve();

  constructor(options: SnapshotStoreOptions) {
    this.#options = options;
  }

  async open(): Promise<void> {
    await mkdir(this.#options.directory, { recursive: true, mode: 0o700 });
  }

  /**
   * Copies the layers of a frozen sandbox.
   * @throws SandboxError failed_precondition when its chain of snapshots is too long.
   */
  async keep(
    id: SnapshotId,
    source: { readonly layers: string; readonly template: string; readonly chain: SnapshotChain },
  ): Promise<void> {
    const { launcher } = this.#options;
    if (source.chain.length >= MAX_DEPTH) {
      const text = `the sandbox stands on ${MAX_DEPTH} snapshots of snapshots, and cannot on more`;
      throw new SandboxError("snapshot_too_deep", text);
    }
    const making = `${this.#path(id)}${MAKING}`;
    try {
      await mkdir(making, { mode: 0o700 });
      for (const layer of await readdir(source.layers)) {
        const copy = [
          "cp",
          "-a",
          "--reflink=auto",
          "--",
          join(source.layers, layer, "upper"),
          join(making, layer),
        ];
        const { code, output } = await launcher.run(copy);
        if (code !== 0) throw new Error(`the layer '${layer}' was not copied: ${output}`);
      }
      const { template, chain } = source;
      await writeFile(join(making, RECORD), JSON.stringify({ template, chain }), { mode: 0o600 });
      await rename(making, this.#path(id));
    } catch (error) {
      await launcher.remove(making);
      throw error;
    }
  }

  /**
   * Chain of a sandbox that starts from a snapshot.
   * @throws SandboxError not_found, invalid_argument when it belongs to another template.
   */
  async chainOf(id: SnapshotId, template: string): Promise<SnapshotChain> {
    const record = await this.#read(id);
    if (record === undefined || (await this.#isRemoved(id))) {
      throw new SandboxError("snapshot_not_found", `snapshot '${id}' not found`);
    }
    if (record.template !== template) {
      throw new SandboxError(
        "snapshot_of_other_template",
        `snapshot '${id}' is not of the template '${template}'`,
      );
    }
    return [id, ...record.chain];
  }

  /** Layers of a chain for one overlay of the template, above the template's own. */
  lowers(chain: SnapshotChain, layer: string): readonly string[] {
    return chain.map((id) => join(this.#path(id), layer));
  }

  /** Snapshots that were not removed, including unfinished ones. */
  async list(): Promise<readonly SnapshotId[]> {
    const ids: SnapshotId[] = [];
    for (const name of await readdir(this.#options.directory)) {
      if (!(await this.#isRemoved(name))) ids.push(name.replace(MAKING, ""));
    }
    return ids;
  }

  /** Removes a snapshot. A missing one is fine. */
  async remove(id: SnapshotId): Promise<void> {
    await this.#options.launcher.remove(`${this.#path(id)}${MAKING}`);
    if ((await stat(this.#path(id)).catch(() => undefined)) !== undefined) {
      await writeFile(join(this.#path(id), REMOVED), "");
    }
    await this.collect();
  }

  /** Frees removed snapshots without dependents. */
  collect(): Promise<void> {
    // One after the other: concurrent removals of the same tree fail.
    const collected = this.#collected.then(() => this.#collect());
    this.#collected = collected.catch(() => undefined);
    return collected;
  }

  async #collect(): Promise<void> {
    const { directory, launcher, chainsInUse } = this.#options;
    const chains = [...(await chainsInUse())];
    const removed: SnapshotId[] = [];
    for (const name of await readdir(directory)) {
      if (await this.#isRemoved(name)) removed.push(name);
      else chains.push((await this.#read(name))?.chain ?? []);
    }
    const used = new Set(chains.flat());
    const unused = removed.filter((id) => !used.has(id));
    if (unused.length > 0) await launcher.remove(...unused.map((id) => this.#path(id)));
  }

  #path(id: SnapshotId): string {
    return join(this.#options.directory, id);
  }

  async #isRemoved(id: SnapshotId): Promise<boolean> {
    return (await stat(join(this.#path(id), REMOVED)).catch(() => undefined)) !== undefined;
  }

  async #read(id: SnapshotId): Promise<z.infer<typeof snapshotFacts> | undefined> {
    const text = await readFile(join(this.#path(id), RECORD), "utf8").catch(() => undefined);
    if (text === undefined) return undefined;
    return snapshotFacts.parse(JSON.parse(text));
  }
}
