import { SandboxError } from "../../kernel/errors.js";
import { sharedWeakMap } from "../../kernel/token.js";
import type { Scope } from "./principal.js";
import { type RequestCarrier, requestOf } from "./surface-request.js";

type Middleware = (
  ctx: { readonly method: string; readonly state: object },
  next: () => Promise<unknown>,
) => Promise<unknown>;

const DECLARED = sharedWeakMap<object, Scope>("permitted-scopes");
const READING = new Set(["GET", "HEAD", "OPTIONS"]);

/**
 * Requires a scope for a route of a surface: `router.post("/x", permit("exec"), serve)`. Without it a route requires
 * `read` for GET, HEAD and OPTIONS and `write` for the rest.
 */
export function permit(scope: Scope): Middleware {
  const middleware: Middleware = (ctx, next) => {
    requireScope(ctx, scope);
    return next();
  };
  DECLARED.set(middleware, scope);
  return middleware;
}

/** Permission of routes without a `permit`. */
export const permitByMethod: Middleware = (ctx, next) => {
  requireScope(ctx, scopeOfMethod(ctx.method));
  return next();
};

/** Scopes of the `permit`s among the middleware of a route. */
export function permittedScopes(stack: readonly object[]): readonly Scope[] {
  return stack.flatMap((middleware) => DECLARED.get(middleware) ?? []);
}

/** Scope that a route without a `permit` requires. */
export function scopeOfMethod(method: string): Scope {
  return READING.has(method) ? "read" : "write";
}

/** True for a sender who has the scope. Where no guard authenticates, everything is allowed. */
export function permits(carrier: RequestCarrier, scope: Scope): boolean {
  const { principal } = requestOf(carrier);
  return principal === undefined || principal.scopes.has(scope) || principal.scopes.has("admin");
}

/** For handlers without a koa route that could have `permit`. @throws SandboxError permission_denied */
export function requireScope(carrier: RequestCarrier, scope: Scope): void {
  if (permits(carrier, scope)) return;
  throw new SandboxError("scope_missing", `this credential does not have the scope '${scope}'`);
}
