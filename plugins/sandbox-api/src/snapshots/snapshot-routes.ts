import {
  parseSandboxId,
  readJsonBody,
  type RequestCarrier,
  requestOf,
  type Router,
  type Sandboxes,
  type TenantSnapshots,
} from "@coppice/core";
import { listSnapshots } from "./list-snapshots.js";
import { snapshotBody } from "./snapshot-body.js";
import { takeSnapshotBody } from "./take-snapshot.js";

export interface SnapshotRoutesOptions {
  readonly maxBody: number;
  readonly sandboxes: (carrier: RequestCarrier) => Sandboxes;
  readonly snapshots: (carrier: RequestCarrier) => TenantSnapshots;
}

export function mountSnapshots(
  router: Router,
  { maxBody, sandboxes, snapshots }: SnapshotRoutesOptions,
): void {
  router.post("/sandboxes/:id/snapshots", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    sandboxes(ctx).get(id);
    const { name } = await readJsonBody(ctx.req, takeSnapshotBody, { limitBytes: maxBody, empty: {} });
    ctx.body = snapshotBody(await snapshots(ctx).take(id, name ?? undefined));
    ctx.status = 201;
  });

  router.get("/snapshots", (ctx) => {
    const page = listSnapshots(snapshots(ctx), requestOf(ctx).url.searchParams);
    if (page.nextToken !== undefined) ctx.set("X-Next-Token", page.nextToken);
    ctx.body = page.snapshots.map(snapshotBody);
  });
}
