import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import type { Sandbox, SandboxSpec } from "@coppice/core/backend";
import type { JailBackend, JailSettings } from "@coppice/plugin-jail-freebsd";
import { eventually } from "@coppice/core/testing";
import { type Decoys, plantDecoys } from "./decoys.js";
import { type FailingPrograms, type Fault, makeFailingPrograms } from "./failing-programs.js";
import { type FreebsdHost, type FreebsdHostOptions, openFreebsdHost } from "./freebsd-host.js";

/** Upper limit of the commands of one operation. */
const MOST_COMMANDS = 80;

/** Actions of a test while a host fails. */
export interface FaultyAct<T> {
  /** Runs before any command fails. */
  readonly prepare?: (scene: FaultScene) => Promise<T>;
  readonly act: (scene: FaultScene, prepared: T) => Promise<void>;
  /** Runs when no command fails any more, before the check for remains. */
  readonly end?: () => Promise<void>;
  /** True when the host is rebooted before the next server. */
  readonly isRebooted?: boolean;
  /** Every so many commands one fails; each when absent. */
  readonly stride?: number;
  /** The program whose commands fail; each when absent. */
  readonly only?: string;
}

/** A server's backend, and the sandboxes that were asked of it. */
export class FaultScene {
  readonly backend: JailBackend;
  readonly #made: Sandbox[] = [];

  constructor(backend: JailBackend) {
    this.backend = backend;
  }

  async make(spec: Partial<SandboxSpec> = {}): Promise<Sandbox> {
    const id = newId();
    const plain = { id, template: "base", limits: {}, allowInternetAccess: true };
    const sandbox = await this.backend.provision({ ...plain, ...spec }, new AbortController().signal);
    this.#made.push(sandbox);
    return sandbox;
  }

  /** Destroys its sandboxes, or the given ones, and all volumes, snapshots and images. */
  async end(found: readonly Sandbox[] = this.#made): Promise<void> {
    for (const sandbox of found) await sandbox.destroy();
    for (const id of await this.backend.volumes.list()) await this.backend.volumes.remove(id);
    for (const id of await this.backend.snapshots.list()) await this.backend.snapshots.remove(id);
    for (const id of (await this.backend.images?.list()) ?? []) await this.backend.images?.remove(id);
  }
}

/** A new id for a sandbox, volume, snapshot or image. */
export function newId(): string {
  return `test${randomBytes(8).toString("hex")}`;
}

/** A FreeBSD host with decoys whose programs can be made to fail. */
export class FaultyHost implements AsyncDisposable {
  readonly host: FreebsdHost;
  readonly decoys: Decoys;
  readonly failing: FailingPrograms;
  readonly #decoysBefore: string;
  readonly #datasetsBefore: string;

  private constructor(
    host: FreebsdHost,
    found: { decoys: Decoys; failing: FailingPrograms; shown: string; datasets: string },
  ) {
    this.host = host;
    this.decoys = found.decoys;
    this.failing = found.failing;
    this.#decoysBefore = found.shown;
    this.#datasetsBefore = found.datasets;
  }

  static async open(options: FreebsdHostOptions = {}): Promise<FaultyHost> {
    const host = await openFreebsdHost(options);
    try {
      const failing = await makeFailingPrograms(host);
      const decoys = await plantDecoys(host);
      const [shown, datasets] = [await decoys.show(), await datasetsOf(host)];
      return new FaultyHost(host, { decoys, failing, shown, datasets });
    } catch (error) {
      await host[Symbol.asyncDispose]();
      throw error;
    }
  }

  /**
   * Runs `act` with its first command failing, then with the second, and so on, until no command is left to fail.
   * After a `dead` fault a new server recovers; after any other, the same server sweeps.
   * @returns the number of commands that failed.
   * @throws AssertionError for remains.
   */
  async failAtEach<T>(fault: Fault, faulty: FaultyAct<T>): Promise<number> {
    const { prepare, act, end, isRebooted = false, stride = 1, only } = faulty;
    for (let number = 0; number < MOST_COMMANDS; number += stride) {
      const scene = new FaultScene(await this.serve());
      const prepared = (await prepare?.(scene)) as T;
      await this.failing.arm(fault, number, only);
      const error = await act(scene, prepared).catch((failure: unknown) => failure);
      const hasFailed = await this.failing.heal();
      if (!hasFailed && error !== undefined) throw new Error("it failed by itself", { cause: error });
      const what = `command ${number} ${fault}: ${String(error)}`;
      try {
        await (fault === "dead" ? this.#restart(scene, isRebooted) : this.#sweep(scene));
        await end?.();
      } catch (failure) {
        throw new Error(`cannot end after ${what}`, { cause: failure });
      }
      assert.equal(await datasetsOf(this.host), this.#datasetsBefore, `datasets differ after ${what}`);
      assert.deepEqual(await this.#leaks(), [], `left behind after ${what}`);
      if (!hasFailed) return number;
    }
    throw new Error(`it takes more than ${MOST_COMMANDS} commands`);
  }

  /** A backend over the failing programs, after its recovery. */
  async serve(settings: Partial<JailSettings> = {}): Promise<JailBackend> {
    const backend = this.host.backend({ ...this.failing.settings, ...settings });
    await backend.recover();
    return backend;
  }

  /** @throws AssertionError when a decoy was touched since the beginning. */
  async checkDecoys(): Promise<void> {
    assert.equal(await this.decoys.show(), this.#decoysBefore);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.host[Symbol.asyncDispose]();
  }

  /** Waits for the end of killed processes. */
  async #leaks(): Promise<readonly string[]> {
    let leaks: readonly string[] = [];
    const isEmpty = async () => (leaks = await this.decoys.leaks()).length === 0;
    await eventually("nothing is left", isEmpty, 5_000).catch(() => undefined);
    return leaks;
  }

  async #restart(scene: FaultScene, isRebooted: boolean): Promise<void> {
    await scene.backend.close();
    if (isRebooted) await this.host.reboot();
    const backend = this.host.backend();
    await new FaultScene(backend).end(await backend.recover());
    await backend.close();
  }

  /** Repeats the removals that failed. */
  async #sweep(scene: FaultScene): Promise<void> {
    await scene.end();
    await scene.backend.sweep();
    await scene.backend.close();
  }
}

async function datasetsOf(host: FreebsdHost): Promise<string> {
  const words = ["list", "-H", "-o", "name", "-t", "filesystem,snapshot", "-r", "coppice"];
  return host.run(host.settings.programs.zfs, ...words);
}
