import type { ServerResponse } from "node:http";
import { messageOf, SandboxError } from "../../kernel/errors.js";
import type { CreateSandbox, Sandboxes } from "../../sandbox/life/sandboxes.js";
import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";
import type { SurfaceRequest } from "../surfaces/surface-request.js";

export interface Waiting {
  readonly request: Pick<SurfaceRequest, "signal" | "log">;
  readonly response: ServerResponse;
}

/**
 * Makes a sandbox for a client, and ends it when the client leaves before the answer: no other client knows its id.
 * @throws the errors of `Sandboxes.create`; canceled when the client has left.
 */
export async function createSandbox(
  sandboxes: Pick<Sandboxes, "create" | "kill">,
  wanted: CreateSandbox,
  waiting: Waiting,
): Promise<LiveSandbox> {
  const sandbox = await sandboxes.create(wanted, waiting.request.signal);
  endUnlessClaimed(sandboxes, [sandbox], waiting);
  return sandbox;
}

/** Ends sandboxes whose client has left. @throws SandboxError canceled in that case. */
export function endUnlessClaimed(
  sandboxes: Pick<Sandboxes, "kill">,
  made: readonly LiveSandbox[],
  { request, response }: Waiting,
): void {
  const discard = (): void => {
    for (const { record } of made) {
      sandboxes.kill(record.id).catch((error: unknown) => {
        // It may have ended by itself, or by another client, meanwhile.
        if (error instanceof SandboxError && error.code === "not_found") return;
        request.log.warn(
          { sandboxId: record.id, reason: messageOf(error) },
          "an unclaimed sandbox could not be ended",
        );
      });
    }
  };
  if (request.signal.aborted) {
    discard();
    throw new SandboxError("client_gone", "the client is gone");
  }
  response.once("close", () => {
    if (!response.writableFinished) discard();
  });
}
