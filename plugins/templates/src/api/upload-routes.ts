import {
  type Clock,
  type Guard,
  permit,
  requestOf,
  type Router,
  SandboxError,
  tenantOf,
} from "@coppice/core";
import type { UploadTickets } from "../uploads/uploads.js";
import { type ApiServices, buildingBackend } from "./api-services.js";
import { REASONS } from "../reasons.js";

const HASH = /^[0-9a-f]{64}$/;

/** The route that tells where to upload an archive for COPY steps. */
export function mountUploadLinks(router: Router, services: ApiServices): void {
  const { config, clock, catalog, uploads, tickets } = services;

  // The link allows to write.
  router.get("/templates/:id/files/:hash", permit("write"), (ctx) => {
    buildingBackend(services);
    const { id = "", hash = "" } = ctx.params;
    if (!HASH.test(hash)) throw new SandboxError(REASONS.template_build_invalid, "Invalid files hash");
    const tenant = tenantOf(ctx);
    requireOwn(id, tenant);
    const { headers, protocol } = requestOf(ctx);
    const base = config.uploadUrl?.replace(/\/+$/, "") ?? `${protocol}://${headers.host}`;
    const ticket = tickets.write({ tenant, hash, endsAtMs: clock.now() + config.uploadLinkLife });
    // A present one has a URL, too: clients may want to replace it.
    ctx.body = { present: uploads.has({ tenant, hash }), url: `${base}/templates/uploads/${ticket}` };
    ctx.status = 201;
  });

  function requireOwn(id: string, tenant: string): void {
    try {
      catalog.own(id.toLowerCase(), tenant);
    } catch (error) {
      if (!(error instanceof SandboxError) || error.code !== "not_found") throw error;
      throw new SandboxError("template_not_found", `Error when getting template: ${error.message}`, {
        cause: error,
      });
    }
  }
}

/** Lets the bearer of a link upload what it is for. One that is not of this server is refused by the route. */
export function uploadGuard(tickets: UploadTickets, clock: Clock): Guard {
  return ({ url }) => {
    if (!tickets.isOwn(ticketIn(url.pathname))) return undefined;
    const { tenant } = tickets.read(ticketIn(url.pathname), clock.now());
    return { tenant, name: "upload", scopes: new Set(["write"]) };
  };
}

/** The route of uploads, on a router with `uploadGuard`. */
export function mountUploads(router: Router, { clock, uploads, tickets, peers }: ApiServices): void {
  peers.hold({
    kind: "upload",
    surface: "api",
    inPath: (pathname) => (pathname.startsWith("/templates/uploads/") ? ticketIn(pathname) : undefined),
    has: (ticket) => tickets.isOwn(ticket),
  });

  router.put("/templates/uploads/:ticket", async (ctx) => {
    const permission = tickets.read(ctx.params["ticket"] ?? "", clock.now());
    await uploads.receive(permission, ctx.req);
    ctx.body = "";
    ctx.status = 200;
  });
}

function ticketIn(pathname: string): string {
  return pathname.split("/")[3] ?? "";
}
