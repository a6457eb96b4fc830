import { SandboxError } from "@coppice/core";
import type { Launcher } from "../launcher/launcher.js";

/** Far above what operators write into /etc/projects by hand. */
const FIRST_PROJECT = 1_600_000_000;
const PROJECTS = 1_000_000;

/**
 * Holds sandboxes to their share of the disk where the file system counts what belongs to a project: every
 * program inside meets the limit, and what is used is known without looking.
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

  /** @returns undefined where the file system of the directory does not count, or not for this server. */
  static async find(launcher: Launcher, directory: string): Promise<ProjectQuotas | undefined> {
    const isEnforced = (await launcher.disk("enforced", directory)) === "1";
    return isEnforced ? new ProjectQuotas(launcher, directory) : undefined;
  }

  /** The number of a project for a sandbox or a volume. @throws SandboxError resource_exhausted */
  take(): number {
    // Not the one that was given back last: its files may still be on their way out.
    for (let tried = 0; tried < PROJECTS; tried++) {
      this.#last = (this.#last + 1) % PROJECTS;
      const project = FIRST_PROJECT + this.#last;
      if (this.#used.has(project)) continue;
      this.#used.add(project);
      return project;
    }
    throw new SandboxError("ids_exhausted", "all projects of the file system are in use");
  }

  /** Says that what an earlier server made has it. */
  retake(project: number): void {
    this.#used.add(project);
  }

  /** Bytes that its files take up. */
  async usage(project: number): Promise<number> {
    return Number(await this.#launcher.disk("usage", this.#directory, project));
  }

  /** Makes an empty directory, and whatever will be made in it, part of a project. */
  async hold(directory: string, project: number, limitMiB: number): Promise<void> {
    await this.#launcher.disk("hold", directory, project, limitMiB);
  }

  /** Changes the limit of one that is in use. */
  async limit(project: number, limitMiB: number): Promise<void> {
    await this.#launcher.disk("limit", this.#directory, project, limitMiB);
  }

  /** Takes the limit away, once its files are gone. */
  async release(project: number): Promise<void> {
    await this.limit(project, 0);
    this.#used.delete(project);
  }
}
