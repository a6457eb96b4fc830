import { mkdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { resolve } from "node:path";
import { SandboxError, messageOf } from "@coppice/core";
import type { Sandbox, SandboxBackend, SandboxSpec } from "@coppice/core/backend";
import { killProcesses } from "./host-processes.js";
import { LocalSandbox } from "./local-sandbox.js";
import { abandonedDirectories, makeOwnedDirectory } from "./owned-directory.js";
import { type Owner, currentOwner } from "./owner.js";
import { Pipes } from "./pipes.js";
import { makeSandboxDirectory, removeSandboxDirectory, sandboxDirectoryAt } from "./sandbox-directory.js";

export interface LocalProcessSettings {
  /** Where the trees of sandboxes are made; the system's directory for temporary files when absent. */
  readonly directory?: string | undefined;
  readonly writeInPlaceLimit: number;
  readonly diskScanEntries: number;
  readonly killTimeoutMs: number;
  /** Where programs are looked for before the directories of PATH. */
  readonly programDirectory?: string | undefined;
}

/** Makes sandboxes out of a directory and plain processes of this host. Templates and limits mean nothing to it. */
export class LocalProcessBackend implements SandboxBackend {
  readonly name = "local-process";
  readonly isolated = false;
  readonly #settings: LocalProcessSettings;
  readonly #parent: string;
  readonly #pipes: Pipes;
  #owner: Promise<Owner> | undefined;

  constructor(settings: LocalProcessSettings) {
    this.#settings = settings;
    this.#parent = resolve(settings.directory ?? tmpdir());
    this.#pipes = new Pipes(async () => makeOwnedDirectory(this.#parent, "pipes", await this.#self()));
  }

  async check(): Promise<void> {
    try {
      await mkdir(this.#parent, { recursive: true, mode: 0o700 });
      // Tries all that a sandbox needs: a directory, and the program that makes pipes.
      await this.#pipes.prepare();
    } catch (error) {
      throw new SandboxError(
        "failed_precondition",
        `local-process cannot use this host: ${messageOf(error)}`,
        {
          cause: error,
        },
      );
    }
  }

  async provision(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    const { id } = spec;
    if (!spec.allowInternetAccess) {
      throw new SandboxError(
        "failed_precondition",
        "sandboxes of backend 'local-process' use the host's network: they cannot be kept from the internet",
      );
    }
    const { writeInPlaceLimit, diskScanEntries, killTimeoutMs, programDirectory } = this.#settings;
    const directory = await makeSandboxDirectory(
      { parent: this.#parent, id, owner: await this.#self() },
      signal,
    );
    try {
      return new LocalSandbox({
        id,
        directory,
        pipes: this.#pipes,
        writeInPlaceLimit,
        diskScanEntries,
        killTimeoutMs,
        programDirectory,
      });
    } catch (error) {
      await removeSandboxDirectory(directory.path);
      throw error;
    }
  }

  /**
   * Nothing outlives the server that started it: its pipes broke with it. So this ends what servers that
   * are gone have left behind, and leaves alone what belongs to one that runs.
   */
  async recover(): Promise<readonly Sandbox[]> {
    for (const path of await abandonedDirectories(this.#parent)) {
      await killProcesses(sandboxDirectoryAt(path).root, this.#settings.killTimeoutMs);
      await removeSandboxDirectory(path);
    }
    return [];
  }

  /** Gives back what is no sandbox's own. Sandboxes still alive cannot start processes afterwards. */
  async close(): Promise<void> {
    await this.#pipes.close();
  }

  #self(): Promise<Owner> {
    this.#owner ??= currentOwner();
    return this.#owner;
  }
}
