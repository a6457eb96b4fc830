import type { ServerResponse } from "node:http";
import {
  type CreateSandbox,
  type LiveSandbox,
  messageOf,
  type Sandboxes,
  SandboxError,
  type SurfaceRequest,
} from "@coppice/core";

/** The client that waits for the new sandbox. */
export interface Waiting {
  readonly request: Pick<SurfaceRequest, "signal" | "log">;
  readonly response: ServerResponse;
}

/**
 * Makes a sandbox for a client. Nobody else knows its id, so it is ended again when the client goes
 * away before the answer has left.
 * @throws what `Sandboxes.create` throws; canceled when the client has gone.
 */
export async function createSandbox(
  sandboxes: Sandboxes,
  wanted: CreateSandbox,
  { request, response }: Waiting,
): Promise<LiveSandbox> {
  const sandbox = await sandboxes.create(wanted, request.signal);
  const discard = (): void => {
    sandboxes.kill(sandbox.record.id).catch((error: unknown) => {
      // It may have ended by itself, or by another client, meanwhile.
      if (error instanceof SandboxError && error.code === "not_found") return;
      request.log.warn(
        { sandboxId: sandbox.record.id, reason: messageOf(error) },
        "an unclaimed sandbox could not be ended",
      );
    });
  };
  if (request.signal.aborted) {
    discard();
    throw new SandboxError("canceled", "the client is gone");
  }
  response.once("close", () => {
    if (!response.writableFinished) discard();
  });
  return sandbox;
}
