import type { IncomingMessage } from "node:http";
import type { ContextKey, ContextValues, HandlerContext } from "@connectrpc/connect";
import { SandboxError } from "../../kernel/errors.js";
import { sharedWeakMap } from "../../kernel/token.js";
import type { Logger } from "../../observe/logger.js";
import type { SandboxId } from "../../sandbox/contract/backend.js";
import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";
import type { Principal } from "./principal.js";

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

/** Key of the request in the context of an RPC. All copies of core have the same: a plugin may bring its own. */
export const requestKey: ContextKey<SurfaceRequest | undefined> = {
  id: Symbol.for("coppice.surface-request"),
  defaultValue: undefined,
};

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
const concerned = sharedWeakMap<SurfaceRequest, SandboxId>("concerned-sandboxes");

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
