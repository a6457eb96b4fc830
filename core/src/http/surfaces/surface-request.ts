import type { IncomingMessage, ServerResponse } from "node:http";
import { type ContextValues, createContextKey, type HandlerContext } from "@connectrpc/connect";
import { SandboxError } from "../../kernel/errors.js";
import type { Logger } from "../../observe/logger.js";
import type { SandboxId } from "../../sandbox/contract/backend.js";
import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";
import type { Duplex } from "node:stream";

/** Permission of a credential; each route requires one. */
export type Scope = "read" | "write" | "exec" | "attach" | "admin";

export const SCOPES: readonly Scope[] = ["read", "write", "exec", "attach", "admin"];

export const PRINCIPAL_TYPES = ["user", "service", "agent"] as const;
type PrincipalType = (typeof PRINCIPAL_TYPES)[number];

/** Sender of a request, as a guard authenticated it. */
export interface Principal {
  /** Owns what it makes, and sees only what it owns. */
  readonly tenant: string;
  /** For logs and the audit: a key's name, a token's subject. Not a secret. */
  readonly name: string;
  /** `admin` includes every other. */
  readonly scopes: ReadonlySet<Scope>;
  /** Kind of the subject, where the credential says it. */
  readonly type?: PrincipalType | undefined;
  /** Subject that acts for the principal, where the credential names one. */
  readonly actor?: string | undefined;
}

export interface Target {
  readonly sandbox: LiveSandbox;
  readonly port: number;
}

/** A request as guards and routes see it. */
export interface SurfaceRequest {
  /** The client's `X-Request-Id` when it is valid, else a new one; returned in the same header. */
  readonly id: string;
  /** The surface whose routes serve it: `api`, `envd`, `code`, `ops`. */
  readonly surface: string;
  readonly method: string;
  readonly url: URL;
  readonly headers: IncomingMessage["headers"];
  readonly log: Logger;
  /** Aborted when the client goes away, or the server gives up draining. */
  readonly signal: AbortSignal;
  readonly target: Target | undefined;
  /** The client's address, by the word of trusted proxies where there are any. */
  readonly clientAddress: string;
  /** The client's protocol, by the word of trusted proxies where there are any. */
  readonly protocol: "http" | "https";
  /** Sender, as a guard named it; undefined for requests to a sandbox, and on surfaces without authentication. */
  readonly principal: Principal | undefined;
  /** True when another server has passed it on: it goes no further. */
  readonly isPassedOn: boolean;
}

/** The request with its sender. What is made on demand stays so, which it would not in a spread. */
export function withPrincipal(request: SurfaceRequest, principal: Principal | undefined): SurfaceRequest {
  const { id, surface, method, url, headers, target, clientAddress, protocol, isPassedOn } = request;
  return {
    id,
    surface,
    method,
    url,
    headers,
    target,
    clientAddress,
    protocol,
    principal,
    isPassedOn,
    get log() {
      return request.log;
    },
    get signal() {
      return request.signal;
    },
  };
}

/** Key of the request in the context of an RPC. */
export const requestKey = createContextKey<SurfaceRequest | undefined>(undefined);

/** The request of an RPC's context values. */
export function requestIn(values: ContextValues): SurfaceRequest {
  const request = values.get(requestKey);
  if (request === undefined) throw new Error("this RPC did not come through a surface");
  return request;
}

/** A koa context (`ctx.state.request`), a Connect handler context, or the request itself, as upgrades get it. */
export type RequestCarrier =
  | HandlerContext
  | { readonly state: { readonly request?: SurfaceRequest } }
  | SurfaceRequest;

/** The request of a koa, RPC or upgrade handler. */
export function requestOf(carrier: RequestCarrier): SurfaceRequest {
  if ("values" in carrier) return requestIn(carrier.values);
  if (!("state" in carrier)) return carrier;
  const { request } = carrier.state;
  if (request === undefined) throw new Error("this context did not come through a surface");
  return request;
}

/** Sandboxes that requests are about, where their paths do not name them. */
const concerned = new WeakMap<SurfaceRequest, SandboxId>();

/** Notes for observers the sandbox of a request whose path does not name it, such as one that it creates. */
export function noteSandbox(carrier: RequestCarrier, id: SandboxId): void {
  concerned.set(requestOf(carrier), id);
}

export function notedSandbox(request: SurfaceRequest): SandboxId | undefined {
  return concerned.get(request);
}

/** The sandbox that a request is for. @throws SandboxError invalid_argument when it names none. */
export function targetOf(carrier: RequestCarrier): LiveSandbox {
  const { target } = requestOf(carrier);
  if (target === undefined) throw new SandboxError("sandbox_not_named", "the request names no sandbox");
  return target.sandbox;
}

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
