import type { BuildContext } from "../model/build-context.js";
import type { LogLevel } from "../model/build-log.js";
import type { Workspace } from "../guest/workspace.js";

/** Surroundings of one step. */
export interface StepRun {
  readonly workspace: Workspace;
  /** As the steps before it left it. */
  readonly context: BuildContext;
  readonly templateId: string;
  /** Variables of the proxies for RUN, which ENV goes before; nothing keeps them. */
  readonly proxies: Readonly<Record<string, string>>;
  readonly signal: AbortSignal;
  /** Takes a line of the log. */
  readonly print: (level: LogLevel, line: string) => void;
  /** `builder 1/2`: begins the lines of output. */
  readonly prefix: string;
  /** As `BuildSurroundings.findUpload`. */
  readonly findUpload: (filesHash: string) => string | undefined;
  /** Most bytes of the files of a COPY step. */
  readonly maxCopyBytes: number;
}

export interface StepResult {
  readonly context: BuildContext;
  /** False when no file has changed. */
  readonly isChanged: boolean;
}
