import { z } from "zod";
import type { BuildLog } from "./build-record.js";
import type { BuildRequest } from "./build-request.js";
import type { BuildResult, Layers } from "./layer.js";

/** How far a transfer has come, in bytes. The total is undefined where it is unknown. */
export const transfer = z.object({
  phase: z.enum(["packing", "pulling", "pushing"]),
  done: z.number(),
  total: z.number().optional(),
});

export type Transfer = Readonly<z.infer<typeof transfer>>;

/** Takes reports while a transfer goes on. */
export type TransferReport = (transfer: Transfer) => void;

/** The finished build of a template that another one starts from. */
export interface SourceBuild extends BuildResult {
  /** Backend that has its image. */
  readonly backend: string;
}

/** Surroundings of one build. */
export interface BuildSurroundings {
  /** Ends the build. Its reason is thrown; the client is told the message of a BuildFailure. */
  readonly signal: AbortSignal;
  /** Takes every line, the first and the last one included. */
  readonly log: BuildLog;
  /** Takes how far the pull of an image has come. */
  readonly report?: TransferReport;
  readonly layers: Layers;
  /**
   * Finds the template of a `[namespace/]name[:tag]` for the tenant of the build.
   * @throws SandboxError with E2B's texts when there is none, or none that is ready.
   */
  findTemplate(reference: string): SourceBuild;
  /** Path on the host of an uploaded archive, tar or tar.gz, that stays until the build ends; undefined without one. */
  findUpload(filesHash: string): string | undefined;
}

/** Makes the images of templates. */
export interface Builder {
  /**
   * Runs a build. Afterwards nothing of it is left but its result and the layers that it added, whatever happens.
   * @throws BuildFailure for every failure that its client can do something about, the signal's reason, or another
   * error, which is a fault of the server.
   */
  build(request: BuildRequest, surroundings: BuildSurroundings): Promise<BuildResult>;
}
