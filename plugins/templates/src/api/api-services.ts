import {
  type Clock,
  type Logger,
  type Peers,
  type Router,
  SandboxError,
  type Sandboxes,
  type Snapshots,
  type Templates,
  tenantOf,
} from "@coppice/core";
import type { Backends, SandboxBackend } from "@coppice/core/backend";
import type { BuildRequests } from "../catalog/build-requests.js";
import type { Catalog } from "../catalog/catalog.js";
import type { BuildRecord } from "../model/build-record.js";
import type { TemplateRecord } from "../model/template-record.js";
import type { BuildQueue } from "../queue/build-queue.js";
import type { TemplatePushes } from "../queue/template-pushes.js";
import type { TemplateSharing } from "../sharing/template-sharing.js";
import type { ImageKeeper } from "../store/image-keeper.js";
import type { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import type { Uploads, UploadTickets } from "../uploads/uploads.js";
import { REASONS } from "../reasons.js";

/** The parts of the server that routes of templates use. */
export interface ApiServices {
  readonly config: TemplatesConfig;
  readonly clock: Clock;
  readonly log: Logger;
  readonly backends: Backends;
  readonly sandboxes: Sandboxes;
  readonly snapshots: Snapshots;
  readonly templates: Templates;
  readonly peers: Peers;
  readonly store: () => TemplatesStore;
  readonly catalog: Catalog;
  readonly requests: BuildRequests;
  readonly queue: BuildQueue;
  readonly pushes: TemplatePushes;
  /** Undefined without a registry for the fleet. */
  readonly sharing: TemplateSharing | undefined;
  readonly keeper: ImageKeeper;
  readonly uploads: Uploads;
  readonly tickets: UploadTickets;
}

export type Context = Parameters<Parameters<Router["get"]>[1]>[0];

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** The backend that templates are built on. @throws SandboxError template_building_unsupported */
export function buildingBackend({
  config,
  backends,
}: Pick<ApiServices, "config" | "backends">): SandboxBackend {
  const able = backends.all().filter(({ images }) => images !== undefined);
  const wanted = config.backend ?? backends.default().name;
  const chosen = able.find(({ name }) => name === wanted);
  const backend = chosen ?? (config.backend === undefined ? able[0] : undefined);
  if (backend !== undefined) return backend;
  const text =
    config.backend === undefined
      ? "this server does not build templates by API, because none of its backends has images: its operator lists templates in sandboxes.templates, and a snapshot of a sandbox is one under its name"
      : `backend '${config.backend}' cannot build templates (templates.backend)`;
  throw new SandboxError(REASONS.template_building_unsupported, text);
}

/**
 * The build of a request's path, and its template.
 * @throws SandboxError template_not_found, template_not_owned; undefined when there is no such build of it.
 */
export function ownBuild(
  ctx: Context,
  { catalog, store }: Pick<ApiServices, "catalog" | "store">,
): { readonly template: TemplateRecord; readonly build: BuildRecord | undefined } {
  const template = catalog.own((ctx.params["id"] ?? "").toLowerCase(), tenantOf(ctx));
  const build = store().builds.get({ id: (ctx.params["build"] ?? "").toLowerCase() });
  return { template, build: build?.templateId === template.id ? build : undefined };
}

export function isBuildId(text: string): boolean {
  return UUID.test(text);
}
