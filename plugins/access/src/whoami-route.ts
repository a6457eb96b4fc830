import { permit, type PluginContext, requestOf, tenantOf } from "@coppice/core";

/** Serves GET /auth/whoami: what the server takes a credential for. */
export function serveWhoami(router: ReturnType<PluginContext<unknown>["http"]>): void {
  router.get("/auth/whoami", permit("read"), (ctx) => {
    const { principal } = requestOf(ctx);
    ctx.body = {
      tenantID: tenantOf(ctx),
      principalName: principal?.name ?? null,
      scopes: [...(principal?.scopes ?? [])],
    };
  });
}
