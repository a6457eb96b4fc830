/** Owner of the templates that the configuration describes. No tenant has this name. */
export const SERVER = "";

/** A template of a tenant. Times are milliseconds since the Unix epoch. */
export interface TemplateRecord {
  /** 20 characters of `[a-z0-9]`. */
  readonly id: string;
  readonly owner: string;
  /** Its owner's, in the names that other tenants use. */
  readonly namespace: string;
  /** Unique among those of its owner. */
  readonly alias: string;
  /** True when every tenant may create sandboxes from it. */
  readonly isPublic: boolean;
  readonly createdAtMs: number;
  readonly updatedAtMs: number;
  readonly spawnCount: number;
  readonly lastSpawnedAtMs: number | undefined;
}
