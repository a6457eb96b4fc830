import type { SandboxClient } from "./sandbox-client.js";

/** An action of `coppice sandbox`, in a file of its own. */
export interface SandboxAction {
  /** Arguments after its name. */
  readonly usage: string;
  /** The exit code when the server cannot be reached or refuses. */
  readonly failed: number;
  /** The exit code when there is no such sandbox. */
  readonly notFound: number;
  /** @returns the exit code. @throws ApiFailure, or what `parseArgs` throws. */
  run(client: SandboxClient, args: readonly string[]): Promise<number>;
}
