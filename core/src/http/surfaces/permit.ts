import { SandboxError } from "../../kernel/errors.js";
import { type Scope, type RequestCarrier, requestOf, type SurfaceRequest } from "./surface-request.js";
import type { Sandboxes } from "../../sandbox/life/sandboxes.js";
import { DEFAULT_TENANT } from "../../sandbox/model/tenant-records.js";
import { describeEnd } from "../../sandbox/model/describe-end.js";
import { UnknownSandbox } from "../../sandbox/contract/sandbox-id.js";

type Middleware = (
  ctx: { readonly method: string; readonly state: object },
  next: () => Promise<unknown>,
) => Promise<unknown>;

const DECLARED = new WeakMap<object, Scope>();
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

/**
 * For what tells of all tenants. The operator is an admin of the tenant of the configured keys; where no guard
 * authenticates, everybody is. @throws SandboxError permission_denied
 */
export function requireOperator(carrier: RequestCarrier): void {
  const { principal } = requestOf(carrier);
  if (principal === undefined || (principal.tenant === DEFAULT_TENANT && principal.scopes.has("admin")))
    return;
  throw new SandboxError(
    "scope_missing",
    `all tenants are for the operator alone: use a key of the tenant '${DEFAULT_TENANT}' with the scope 'admin'`,
  );
}

/**
 * The tenant that a request acts for: the owner of everything that it makes or may see. Plugins' own records keep it
 * beside their id, and are looked up by both.
 */
export function tenantOf(carrier: RequestCarrier): string {
  const { principal, target } = requestOf(carrier);
  return principal?.tenant ?? target?.sandbox.record.owner ?? DEFAULT_TENANT;
}

/**
 * The sandboxes that a request's sender may see; use it wherever a request names a sandbox in its path, query or body.
 * @throws Error for a request addressed to a sandbox: its bearer may see that one alone, by `targetOf`.
 */
export function sandboxesOf(carrier: RequestCarrier, sandboxes: Sandboxes): Sandboxes {
  const { target, isPassedOn } = requestOf(carrier);
  if (target !== undefined) throw new Error("a request that is addressed to a sandbox has no others");
  return sandboxes.of(tenantOf(carrier), { mayPlace: !isPassedOn });
}

/**
 * Adds to the answer for an unknown sandbox how it ended, if the client belongs to its tenant. For others it never
 * existed. Never rejects.
 * @returns the error to answer.
 */
export async function explainEnd(
  error: unknown,
  request: SurfaceRequest,
  endOf: Sandboxes["endOf"],
): Promise<unknown> {
  if (!(error instanceof UnknownSandbox)) return error;
  try {
    const ended = await endOf(error.sandboxId);
    return ended?.owner !== tenantOf(request)
      ? error
      : new UnknownSandbox(error.sandboxId, describeEnd(ended));
  } catch (failure) {
    request.log.error({ err: failure }, "the end of a sandbox could not be looked up");
    return error;
  }
}
