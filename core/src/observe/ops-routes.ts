import type Router from "@koa/router";
import { Registry } from "prom-client";
import type { Health } from "./health.js";

/** `/metrics`, `/healthz` and `/readyz`. */
export function mountOps(router: Router, registries: readonly Registry[], health: Health): void {
  router.get("/metrics", async (ctx) => {
    const merged = Registry.merge([...registries]);
    ctx.set("content-type", merged.contentType);
    ctx.body = await merged.metrics();
  });
  router.get("/healthz", (ctx) => {
    ctx.body = { status: "ok" };
  });
  router.get("/readyz", async (ctx) => {
    const readiness = await health.readiness();
    ctx.status = readiness.ready ? 200 : 503;
    ctx.body = readiness;
  });
}
