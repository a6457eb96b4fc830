import {
  permit,
  type Router,
  readJsonBody,
  type RequestCarrier,
  tenantOf,
  type TenantVolumes,
  type Volumes,
} from "@coppice/core";
import { createVolumeBody, volumeAndTokenBody, volumeBody } from "./volume-body.js";

export interface VolumeRoutesOptions {
  readonly volumes: Volumes;
  readonly domain: () => string | undefined;
  readonly maxBody: number;
}

/** Serves the volumes of the E2B control plane. */
export function mountVolumes(router: Router, { volumes, domain, maxBody }: VolumeRoutesOptions): void {
  const own = (carrier: RequestCarrier): TenantVolumes => volumes.of(tenantOf(carrier));

  router.post("/volumes", async (ctx) => {
    const { name, sizeMB } = await readJsonBody(ctx.req, createVolumeBody, { limitBytes: maxBody });
    const made = await own(ctx).create({ name, sizeMiB: sizeMB ?? undefined });
    ctx.status = 201;
    ctx.body = volumeAndTokenBody(made, domain());
  });

  router.get("/volumes", (ctx) => {
    ctx.body = own(ctx).list().map(volumeBody);
  });

  // The returned token allows writing, too.
  router.get("/volumes/:id", permit("write"), async (ctx) => {
    const volume = own(ctx).get(ctx.params["id"] ?? "");
    ctx.body = {
      ...volumeAndTokenBody(volume, domain()),
      usedBytes: await own(ctx).usage(volume.id),
    };
  });

  router.delete("/volumes/:id", async (ctx) => {
    await own(ctx).remove(ctx.params["id"] ?? "");
    ctx.status = 204;
  });
}
