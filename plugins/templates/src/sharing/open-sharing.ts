import type { Clock, Logger, SharedTemplates, Snapshots } from "@coppice/core";
import type { Backends } from "@coppice/core/backend";
import type { Catalog } from "../catalog/catalog.js";
import type { ImagePuller } from "../images/image-puller.js";
import type { ImagePusher } from "../images/image-pusher.js";
import { TemplatePushes } from "../queue/template-pushes.js";
import type { ImageKeeper } from "../store/image-keeper.js";
import type { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { TemplateCopies } from "./template-copies.js";
import { TemplateSharing } from "./template-sharing.js";

export interface OpenSharingOptions {
  readonly shared: SharedTemplates;
  readonly transports: {
    readonly pusher: Pick<ImagePusher, "target">;
    readonly puller: Pick<ImagePuller, "find">;
  };
  readonly buildsInUse: () => Iterable<string>;
  readonly backends: Backends;
  readonly snapshots: Snapshots;
  readonly store: () => TemplatesStore;
  readonly catalog: Catalog;
  readonly keeper: ImageKeeper;
  readonly settings: TemplatesConfig;
  readonly clock: Clock;
  readonly log: Logger;
}

/** Sharing by the registry of the settings; undefined without one. */
export function templateSharing({
  shared,
  transports: { pusher, puller },
  ...parts
}: OpenSharingOptions): TemplateSharing | undefined {
  const { sharing } = parts.settings;
  if (sharing === undefined) return undefined;
  const { registry, username, password, interval } = sharing;
  const credentials =
    username === undefined || password === undefined
      ? undefined
      : ({ type: "registry", username, password } as const);
  const place = { registry, credentials };
  const copies = new TemplateCopies({ ...parts, ...place, puller, retryMs: interval });
  // Its pushes are none of a tenant's.
  const pushes = new TemplatePushes({ ...parts, pusher });
  return new TemplateSharing({ ...parts, ...place, shared, copies, pushes, intervalMs: interval });
}
