import type { Inferred, parseTemplateReference } from "@coppice/core";
import { z } from "zod";

/** A template as clients name it. */
export type TemplateReference = ReturnType<typeof parseTemplateReference>;

/** Owner of the templates that the configuration describes. No tenant has this name. */
export const SERVER = "";

/** A template of a tenant. Times are milliseconds since the Unix epoch. */
export type TemplateRecord = Inferred<typeof templateRecord>;

export const templateRecord = z.object({
  /** 20 characters of `[a-z0-9]`. */
  id: z.string(),
  owner: z.string(),
  /** Its owner's, in the names that other tenants use. */
  namespace: z.string(),
  /** Unique among those of its owner. */
  alias: z.string(),
  /** True when every tenant may create sandboxes from it. */
  isPublic: z.boolean(),
  createdAtMs: z.number(),
  updatedAtMs: z.number(),
  spawnCount: z.number().default(0),
  lastSpawnedAtMs: z.number().optional(),
});
