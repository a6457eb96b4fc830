import type { IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import type { SandboxId } from "../../sandbox/contract/backend.js";
import type { Principal } from "./principal.js";
import type { SurfaceRequest } from "./surface-request.js";

/** Takes over the socket of a WebSocket (or other) upgrade. The surface has already let the request in. */
export type UpgradeHandler = (
  request: SurfaceRequest,
  upgrade: { readonly message: IncomingMessage; readonly socket: Duplex; readonly head: Buffer },
) => void | Promise<void>;

/** Lets a request of a surface in by returning, or by saying who it comes from; keeps it out by throwing a SandboxError. */
export type Guard = (request: SurfaceRequest) => Principal | void | Promise<Principal | void>;

/** How a request was answered. */
export interface Answered {
  readonly status: number;
  /** The pattern of the route that answered, `none` when it was refused before any. Never the raw path. */
  readonly route: string;
  /** The sandbox that it was about, where the route said so (`noteSandbox`). */
  readonly sandboxId: SandboxId | undefined;
}

/** Learns how a request was answered, at once before the client does. Must not throw. */
export type Observer = (request: SurfaceRequest, answered: Answered) => void;
