import { permit, type Router, requestOf, tenantOf } from "@coppice/core";

export function mountWhoami(router: Router): void {
  router.get("/auth/whoami", permit("read"), (ctx) => {
    const { principal } = requestOf(ctx);
    ctx.body = {
      tenantID: tenantOf(ctx),
      principalName: principal?.name ?? null,
      scopes: [...(principal?.scopes ?? [])],
    };
  });
}
