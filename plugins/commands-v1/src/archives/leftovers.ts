import { rm } from "node:fs/promises";
import type { LiveSandbox, Sandboxes } from "@coppice/core";
import { TAR_LABEL } from "./tar-process.js";

export interface LeftoversOptions {
  /** Directory on the host for archives that are being checked. */
  readonly spool: () => string;
  readonly sandboxes: Sandboxes;
}

/** Removes what a killed server left of its imports and exports. */
export class Leftovers {
  readonly #options: LeftoversOptions;
  readonly #looked = new WeakSet<LiveSandbox>();
  readonly #beganAtMs = Date.now();

  constructor(options: LeftoversOptions) {
    this.#options = options;
  }

  async removeFiles(): Promise<void> {
    await rm(this.#options.spool(), { recursive: true, force: true });
  }

  /** Ends tar(1) in the sandboxes of an earlier server: nothing reads or feeds it any more. */
  async endProcesses(): Promise<void> {
    for (const sandbox of this.#options.sandboxes.list()) {
      if (sandbox.record.startedAtMs >= this.#beganAtMs || this.#looked.has(sandbox)) continue;
      if (sandbox.record.state !== "running") continue;
      this.#looked.add(sandbox);
      for (const process of await sandbox.adopted()) {
        if (process.label === TAR_LABEL) await process.kill("SIGKILL").catch(() => undefined);
      }
    }
  }
}
