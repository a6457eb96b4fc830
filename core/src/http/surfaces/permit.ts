import { SandboxError } from "../../kernel/errors.js";
import type { Scope } from "./principal.js";
import { type RequestCarrier, requestOf } from "./surface-request.js";

/** A part of a koa route. */
type Middleware = (
  ctx: { readonly method: string; readonly state: object },
  next: () => Promise<unknown>,
) => Promise<unknown>;

const DECLARED = new WeakSet<object>();
const READING = new Set(["GET", "HEAD", "OPTIONS"]);

/**
 * Says what a route of a surface asks of a credential: `router.post("/x", permit("exec"), serve)`. A route that
 * says nothing asks for `read` on GET, HEAD and OPTIONS and for `write` on the rest.
 */
export function permit(scope: Scope): Middleware {
  const middleware: Middleware = (ctx, next) => {
    requireScope(ctx, scope);
    return next();
  };
  DECLARED.add(middleware);
  return middleware;
}

/** Permission of routes without a `permit`. */
export const permitByMethod: Middleware = (ctx, next) => {
  requireScope(ctx, READING.has(ctx.method) ? "read" : "write");
  return next();
};

/** True for what `permit` made. */
export function isPermit(middleware: object): boolean {
  return DECLARED.has(middleware);
}

/**
 * For what has no route of koa's to put `permit` on. Where no guard says who asks, everything is allowed.
 * @throws SandboxError permission_denied
 */
export function requireScope(carrier: RequestCarrier, scope: Scope): void {
  const { principal } = requestOf(carrier);
  if (principal === undefined || principal.scopes.has(scope) || principal.scopes.has("admin")) return;
  throw new SandboxError("permission_denied", `this credential does not have the scope '${scope}'`);
}
