import type { ImageId, Limits } from "@coppice/core/backend";
import type { StartCommand } from "./layer.js";

/** What the steps of a build have set; the later ones and the template's sandboxes go on from here. */
export interface BuildContext {
  /** Of the image's ENV, then of ENV steps. Seen by steps and start commands, not by a sandbox's own commands. */
  readonly environment: Readonly<Record<string, string>>;
  readonly user: string;
  /** Undefined = the home of the user. */
  readonly workdir: string | undefined;
  /** Limits of the pushed template that a build restores. */
  readonly limits?: Pick<Limits, "cpuCount" | "memoryMiB" | "diskMiB"> | undefined;
}

/** A finished build. */
export interface BuildResult {
  readonly image: ImageId;
  readonly context: BuildContext;
  readonly start: StartCommand | undefined;
  /** Bytes of its files. */
  readonly bytes: number;
}
