import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { SandboxError } from "@coppice/core";
import type { ImageId, SnapshotId } from "@coppice/core/backend";
import { z } from "zod";
import type { Launcher } from "../launcher/launcher.js";
import { type Chain, LayerStore } from "./layer-store.js";
import { REASONS } from "../reasons.js";

/** Template of sandboxes, or the image in its place. */
interface Origin {
  readonly template: string;
  readonly image: ImageId | undefined;
}

interface SnapshotSource {
  readonly layers: string;
  readonly template: string;
  /** Images below its files, topmost first; none for a sandbox of a template. */
  readonly images: Chain;
  readonly chain: Chain;
}

const names = z.array(z.string()).readonly();
const snapshotFacts = z.object({ template: z.string(), chain: names, images: names.default([]) }).readonly();
type SnapshotFacts = z.infer<typeof snapshotFacts>;

// With them, a sandbox has no more layers than the launcher can mount.
const MAX_DEPTH = 16;

/** Copies of sandboxes' changes, each a read-only layer for other sandboxes. */
export class SnapshotStore extends LayerStore<SnapshotFacts> {
  readonly #launcher: Launcher;

  /** @param options `chainsInUse` has the snapshots of all sandboxes. */
  constructor(options: {
    readonly directory: string;
    readonly launcher: Launcher;
    readonly chainsInUse: () => Promise<readonly Chain[]>;
  }) {
    super({ ...options, record: "snapshot.json", schema: snapshotFacts });
    this.#launcher = options.launcher;
  }

  /**
   * Copies the layers of a frozen sandbox.
   * @throws SandboxError failed_precondition when its chain of snapshots is too long.
   */
  async keep(id: SnapshotId, { layers, ...facts }: SnapshotSource): Promise<void> {
    if (facts.chain.length >= MAX_DEPTH) {
      const text = `the sandbox stands on ${MAX_DEPTH} snapshots of snapshots, and cannot on more`;
      throw new SandboxError(REASONS.snapshot_too_deep, text);
    }
    using _held = this.hold(facts.chain[0]);
    await this.make(id, async (making) => {
      for (const layer of await readdir(layers)) {
        const paths = [join(layers, layer, "upper"), join(making, layer)];
        const { code, output } = await this.#launcher.run(["cp", "-a", "--reflink=auto", "--", ...paths]);
        if (code !== 0) throw new Error(`the layer '${layer}' was not copied: ${output}`);
      }
      return facts;
    });
  }

  /**
   * Chain of a sandbox that starts from a snapshot.
   * @throws SandboxError not_found, invalid_argument when it is of another template or image.
   */
  async chainOf(id: SnapshotId, { image, template }: Origin): Promise<Chain> {
    const facts = await this.find(id);
    if (facts === undefined) throw new SandboxError("snapshot_not_found", `snapshot '${id}' not found`);
    const [top] = facts.images;
    if (top !== image || (image === undefined && facts.template !== template)) {
      const text = `snapshot '${id}' is not of the template '${template}'`;
      throw new SandboxError("snapshot_of_other_template", text);
    }
    return [id, ...facts.chain];
  }

  /** Layers of a chain for one overlay of the template, above the template's own. */
  lowers(chain: Chain, layer: string): readonly string[] {
    return chain.map((id) => join(this.pathOf(id), layer));
  }
}
