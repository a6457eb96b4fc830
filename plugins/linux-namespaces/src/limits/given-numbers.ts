import { SandboxError } from "@coppice/core";
import { REASONS } from "../reasons.js";
import type { Launcher } from "../launcher/launcher.js";

/** Ids of a sandbox, including the accounts that programs expect, such as `nobody`. */
export const IDS_OF_SANDBOX = 65_536;

/** Gives each running sandbox an exclusive range of user and group ids on the host. */
export class IdRanges {
  readonly #first: number;
  readonly #slots: number;
  readonly #start: number;
  readonly #used = new Set<number>();

  /** @param start random number where the search begins, so that servers of one host rarely collide. */
  constructor({ first, count }: { readonly first: number; readonly count: number }, start: number) {
    this.#first = first;
    this.#slots = Math.floor(count / IDS_OF_SANDBOX);
    this.#start = start;
  }

  /** @returns the first of its ids. @throws SandboxError resource_exhausted */
  take(): number {
    for (let tried = 0; tried < this.#slots; tried++) {
      const first = this.#first + ((this.#start + tried) % this.#slots) * IDS_OF_SANDBOX;
      if (this.#used.has(first)) continue;
      this.#used.add(first);
      return first;
    }
    throw new SandboxError(REASONS.ids_exhausted, "all ids of linux-namespaces.ids are in use");
  }

  reclaim(first: number): void {
    this.#used.add(first);
  }

  /** Call this once all processes of the sandbox have ended. */
  release(first: number): void {
    this.#used.delete(first);
  }
}

/** Far above the numbers that operators write into /etc/projects. */
const FIRST_PROJECT = 1_600_000_000;
const PROJECTS = 1_000_000;

/**
 * Disk limits of sandboxes on file systems with project quotas: every program inside meets the limit, and usage is
 * known without a scan.
 */
export class ProjectQuotas {
  readonly #launcher: Launcher;
  readonly #directory: string;
  readonly #used = new Set<number>();
  #last = 0;

  private constructor(launcher: Launcher, directory: string) {
    this.#launcher = launcher;
    this.#directory = directory;
  }

  /** @returns undefined where the file system has no project quotas, or denies them to this server. */
  static async find(launcher: Launcher, directory: string): Promise<ProjectQuotas | undefined> {
    const isEnforced = (await launcher.disk("enforced", directory)) === "1";
    return isEnforced ? new ProjectQuotas(launcher, directory) : undefined;
  }

  /** Allocates the project of a sandbox or volume. @throws SandboxError resource_exhausted */
  take(): number {
    // The project released last comes last: its files may still be being removed.
    for (let tried = 0; tried < PROJECTS; tried++) {
      this.#last = (this.#last + 1) % PROJECTS;
      const project = FIRST_PROJECT + this.#last;
      if (this.#used.has(project)) continue;
      this.#used.add(project);
      return project;
    }
    throw new SandboxError(REASONS.ids_exhausted, "all projects of the file system are in use");
  }

  reclaim(project: number): void {
    this.#used.add(project);
  }

  async usage(project: number): Promise<number> {
    return Number(await this.#launcher.disk("usage", this.#directory, project));
  }

  /** Assigns an empty directory, and all later files in it, to a project. */
  async hold(directory: string, project: number, limitMiB: number): Promise<void> {
    await this.#launcher.disk("hold", directory, project, limitMiB);
  }

  async limit(project: number, limitMiB: number): Promise<void> {
    await this.#launcher.disk("limit", this.#directory, project, limitMiB);
  }

  async release(project: number): Promise<void> {
    await this.limit(project, 0);
    this.#used.delete(project);
  }
}
