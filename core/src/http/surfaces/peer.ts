import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import type { SurfaceRequest } from "./surface-request.js";

/** Another server, which a request is for. */
export interface Peer {
  /**
   * Passes a request on, and its answer back. A body that was read is sent from memory (`bodyOf`). Resolves when the
   * exchange is over.
   * @throws SandboxError or HttpError as long as nothing was answered.
   */
  relay(
    request: SurfaceRequest,
    exchange: { readonly message: IncomingMessage; readonly response: ServerResponse },
  ): Promise<void>;
  /** As `relay`, for an upgrade. */
  relayUpgrade(
    request: SurfaceRequest,
    upgrade: { readonly message: IncomingMessage; readonly socket: Duplex; readonly head: Buffer },
  ): Promise<void>;
}
