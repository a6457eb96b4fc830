import type { LiveSandbox, Sandboxes } from "@coppice/core";
import { TAR_LABEL } from "./tar-process.js";

/** Ends what a killed server left of its imports and exports. */
export class OrphanCleanup {
  readonly #sandboxes: Sandboxes;
  readonly #looked = new WeakSet<LiveSandbox>();
  readonly #beganAtMs = Date.now();

  constructor(sandboxes: Sandboxes) {
    this.#sandboxes = sandboxes;
  }

  /** Ends tar(1) in the sandboxes of an earlier server: nothing reads or feeds it any more. */
  async endProcesses(): Promise<void> {
    for (const sandbox of this.#sandboxes.list()) {
      if (sandbox.record.startedAtMs >= this.#beganAtMs || this.#looked.has(sandbox)) continue;
      if (sandbox.record.state !== "running") continue;
      this.#looked.add(sandbox);
      for (const process of await sandbox.adopted()) {
        if (process.label === TAR_LABEL) await process.kill("SIGKILL").catch(() => undefined);
      }
    }
  }
}
