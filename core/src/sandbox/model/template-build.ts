import type { Limits, SandboxImage } from "../contract/backend.js";

/** A command that runs in every sandbox of a template from its start on. */
export interface StartCommand {
  /** A line for `bash -l -c`. */
  readonly command: string;
  /** A line for `bash -l -c`, repeated until it ends with 0; undefined = the sandbox is ready at once. */
  readonly ready: string | undefined;
  readonly user: string;
  readonly workdir: string | undefined;
  readonly environment: Readonly<Record<string, string>>;
  /** TCP ports that it listened on at the end of its build. They tell its readiness where `ready` only sleeps. */
  readonly ports: readonly number[];
}

/** One version of a template, as its sandboxes record it: they may outlive it. */
export interface TemplateBuild {
  /** A UUID. */
  readonly id: string;
  readonly image: SandboxImage;
  /** Default limits of its sandboxes. */
  readonly limits: Limits;
  readonly start?: StartCommand | undefined;
}
