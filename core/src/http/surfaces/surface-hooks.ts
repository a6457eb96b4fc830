import type { IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import type { SandboxId } from "../../sandbox/contract/backend.js";
import type { Principal } from "./principal.js";
import type { SurfaceRequest } from "./surface-request.js";

/** Takes over the socket of an upgrade, such as a WebSocket. The surface has already authorized the request. */
export type UpgradeHandler = (
  request: SurfaceRequest,
  upgrade: { readonly message: IncomingMessage; readonly socket: Duplex; readonly head: Buffer },
) => void | Promise<void>;

/**
 * Authorizes a request of a surface by returning, or by returning its principal; refuses it by throwing a SandboxError.
 */
export type Guard = (request: SurfaceRequest) => Principal | void | Promise<Principal | void>;

export interface Answered {
  readonly status: number;
  /** The pattern of the route that answered, `none` when it was refused before routing. Never the raw path. */
  readonly route: string;
  /** The sandbox of the request, where the route noted it (`noteSandbox`). */
  readonly sandboxId: SandboxId | undefined;
}

/** Receives the answer to a request, just before the client does. Must not throw. */
export type Observer = (request: SurfaceRequest, answered: Answered) => void;
