import { digestOf, type Inferred, type parseTemplateReference } from "@coppice/core";
import { z } from "zod";

const NAMESPACE = /^[a-z0-9-_]{1,63}$/;

/** The namespace of a tenant's templates, in the names that other tenants use: the tenant itself where it can be one. */
export function namespaceOf(tenant: string): string {
  if (NAMESPACE.test(tenant)) return tenant;
  const readable = tenant
    .toLowerCase()
    .replaceAll(/[^a-z0-9-_]+/g, "-")
    .slice(0, 40);
  return `${readable}-${digestOf(tenant).slice(0, 16)}`;
}

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
