import {
  gatherAnswers,
  type Peers,
  permit,
  readJsonBody,
  type RequestCarrier,
  type Router,
  tenantOf,
  type Volumes,
} from "@coppice/core";
import { z } from "zod";
import { createVolumeBody, volumeAndTokenBody, volumeBody } from "./volume-files.js";

export interface VolumeRoutesOptions {
  readonly volumes: Volumes;
  readonly domain: () => string | undefined;
  readonly maxBody: number;
  readonly peers: Peers;
}

const VOLUME = /^\/volumes\/([^/]+)\/?$/;
/** As another server wrote it. */
const listed = z.array(z.looseObject({ name: z.string() }));

/** Serves the volumes of the E2B control plane. */
export function mountVolumes(router: Router, { volumes, domain, maxBody, peers }: VolumeRoutesOptions): void {
  const own = (carrier: RequestCarrier): ReturnType<Volumes["of"]> => volumes.of(tenantOf(carrier));

  peers.hold({
    kind: "volume",
    surface: "api",
    inPath: (pathname) => VOLUME.exec(pathname)?.[1],
    has: (reference, tenant) => volumes.of(tenant).find(reference) !== undefined,
  });

  router.post("/volumes", async (ctx) => {
    const { name, sizeMB } = await readJsonBody(ctx.req, createVolumeBody, { limitBytes: maxBody });
    // A name is of one volume on all servers.
    await peers.requireMaker(ctx, { kind: "volume", reference: name });
    const made = await own(ctx).create({ name, sizeMiB: sizeMB ?? undefined });
    ctx.status = 201;
    ctx.body = volumeAndTokenBody(made, domain());
  });

  router.get("/volumes", async (ctx) => {
    const others = (await gatherAnswers(ctx, peers)).flatMap(({ body }) => listed.parse(body));
    ctx.body = [...own(ctx).list().map(volumeBody), ...others].toSorted((a, b) => (a.name < b.name ? -1 : 1));
  });

  // The returned token allows writing, too.
  router.get("/volumes/:id", permit("write"), async (ctx) => {
    const volume = own(ctx).get(ctx.params["id"] ?? "");
    ctx.body = { ...volumeAndTokenBody(volume, domain()), usedBytes: await own(ctx).usage(volume.id) };
  });

  router.delete("/volumes/:id", async (ctx) => {
    await own(ctx).remove(ctx.params["id"] ?? "");
    ctx.status = 204;
  });
}
