import type { DatabaseSync } from "node:sqlite";
import { type Inferred, Table } from "@coppice/core";
import type { ImageId } from "@coppice/core/backend";
import { z } from "zod";
import type { Layer } from "../model/layer.js";

/** An image that this server has named, whether its backend has made it or not. */
export type ImageRecord = Inferred<typeof image>;

const image = z.object({
  id: z.string(),
  backend: z.string(),
  tenant: z.string(),
  /** Undefined until it is measured. */
  bytes: z.number().optional(),
});

/** A build has the image of its result, a layer the one that it made. */
export class ImageTable extends Table<typeof image> {
  constructor(database: DatabaseSync) {
    super(database, { name: "image", schema: image });
  }

  /** Nothing happens for one that is here. */
  add(record: ImageRecord): void {
    this.insert(record, "INSERT OR IGNORE");
  }

  /** Images that no layer, no build and no copy has. */
  unneeded(): readonly ImageRecord[] {
    return this.select(
      `WHERE NOT EXISTS (SELECT 1 FROM layer WHERE layer.image = image.id)
         AND NOT EXISTS (SELECT 1 FROM build WHERE build.image = image.id)
         AND NOT EXISTS (SELECT 1 FROM copy WHERE copy.image = image.id)`,
    );
  }

  describe(id: ImageId, contents: readonly string[]): void {
    this.run("UPDATE image SET contents = ? WHERE id = ?", contents.join("\n"), id);
  }

  /** Packages of an image; undefined where they were not listed. */
  contentsOf(id: ImageId): readonly string[] | undefined {
    const contents = this.query("SELECT contents FROM image WHERE id = ?", id)[0]?.["contents"];
    return typeof contents === "string" ? contents.split("\n").filter(Boolean) : undefined;
  }
}

const layer = z.object({
  tenant: z.string(),
  backend: z.string(),
  key: z.string(),
  image: z.string(),
  content: z.custom<Pick<Layer, "context" | "start" | "bytes">>(),
  usedAtMs: z.number(),
});

export class LayerTable extends Table<typeof layer> {
  constructor(database: DatabaseSync) {
    super(database, { name: "layer", schema: layer });
  }

  /** Finds a layer, and notes its use. */
  use({ key, tenant, backend }: Pick<Layer, "key" | "tenant" | "backend">, nowMs: number): Layer | undefined {
    if (this.update({ key, tenant, backend }, { usedAtMs: nowMs }) === 0) return undefined;
    const found = this.get({ key, tenant, backend });
    return found && { key, tenant, backend, image: found.image, ...found.content };
  }

  add({ key, tenant, backend, image, ...content }: Layer, nowMs: number): void {
    this.insert({ tenant, backend, key, image, content, usedAtMs: nowMs }, "REPLACE");
  }

  /** Removes layers of a tenant, but for those that were used last. */
  forget(tenant: string, kept: number): void {
    this.run(
      `DELETE FROM layer WHERE tenant = ?1 AND (tenant, backend, key) NOT IN
         (SELECT tenant, backend, key FROM layer WHERE tenant = ?1 ORDER BY used_at_ms DESC LIMIT ?2)`,
      tenant,
      kept,
    );
  }
}
