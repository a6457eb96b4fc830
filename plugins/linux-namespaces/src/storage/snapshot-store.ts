import { mkdir, readdir, readFile, rename, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { SandboxError } from "@coppice/core";
import type { SnapshotId } from "@coppice/core/backend";
import { z } from "zod";
import type { Launcher } from "../launcher/launcher.js";

/** Snapshots that files stand on, the topmost first. */
export type SnapshotChain = readonly SnapshotId[];

const snapshotFacts = z.object({ template: z.string(), chain: z.array(z.string()).readonly() }).readonly();

export interface SnapshotStoreOptions {
  readonly directory: string;
  readonly launcher: Launcher;
  /** Chains of every sandbox there is. */
  readonly chainsInUse: () => Promise<readonly SnapshotChain[]>;
}

// A mount takes its options in one page, and every layer is one more path in them.
const DEEPEST = 16;
const RECORD = "snapshot.json";
const REMOVED = "removed";
const MAKING = ".making";

/**
 * Keeps copies of what sandboxes changed, each a read-only layer for others. A copy that was given up stays
 * as long as a sandbox or another snapshot stands on it.
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
   * Copies the layers of a sandbox that stands still.
   * @throws SandboxError failed_precondition when it stands on too many snapshots.
   */
  async keep(
    id: SnapshotId,
    source: { readonly layers: string; readonly template: string; readonly chain: SnapshotChain },
  ): Promise<void> {
    const { launcher } = this.#options;
    if (source.chain.length >= DEEPEST) {
      const text = `the sandbox stands on ${DEEPEST} snapshots of snapshots, and cannot on more`;
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
   * Snapshots below a sandbox that begins with one.
   * @throws SandboxError not_found, invalid_argument when it is of another template.
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

  /** The layers of a chain that lie on top of a template's own, of one of its overlays. */
  lowers(chain: SnapshotChain, layer: string): readonly string[] {
    return chain.map((id) => join(this.#path(id), layer));
  }

  /** Those that were not given up, half-made ones included. */
  async list(): Promise<readonly SnapshotId[]> {
    const ids: SnapshotId[] = [];
    for (const name of await readdir(this.#options.directory)) {
      if (!(await this.#isRemoved(name))) ids.push(name.replace(MAKING, ""));
    }
    return ids;
  }

  /** Gives one up. Missing ones are fine. */
  async remove(id: SnapshotId): Promise<void> {
    await this.#options.launcher.remove(`${this.#path(id)}${MAKING}`);
    if ((await stat(this.#path(id)).catch(() => undefined)) !== undefined) {
      await writeFile(join(this.#path(id), REMOVED), "");
    }
    await this.collect();
  }

  /** Frees what was given up and nothing stands on any more. */
  collect(): Promise<void> {
    // One after the other: two that remove the same tree trip over each other.
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
