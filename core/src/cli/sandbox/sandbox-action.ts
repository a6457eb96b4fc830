import type { SandboxClient } from "./sandbox-client.js";

/** Something that the command line does with sandboxes of a server, one file each. */
export interface SandboxAction {
  /** Arguments behind its name. */
  readonly usage: string;
  /** The exit code when the server cannot be reached or refuses. */
  readonly failed: number;
  /** The exit code when there is no such sandbox. */
  readonly notFound: number;
  /** @returns the exit code. @throws ApiFailure, or what `parseArgs` throws. */
  run(client: SandboxClient, args: readonly string[]): Promise<number>;
}
