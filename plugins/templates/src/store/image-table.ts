import type { DatabaseSync } from "node:sqlite";
import type { ImageId } from "@coppice/core";
import type { Layer } from "../model/layer.js";

/** An image that this server has named, whether its backend has made it or not. */
export interface ImageRecord {
  readonly id: ImageId;
  readonly backend: string;
  readonly tenant: string;
}

type LayerContent = Pick<Layer, "context" | "start" | "bytes">;

/** Images, and the layers that have them. A build has the image of its result. */
export class ImageTable {
  readonly #statements: ReturnType<typeof prepare>;

  constructor(database: DatabaseSync) {
    this.#statements = prepare(database);
  }

  /** Nothing happens for one that is here. */
  add({ id, backend, tenant }: ImageRecord): void {
    this.#statements.add.run(id, backend, tenant);
  }

  remove(id: ImageId): void {
    this.#statements.remove.run(id);
  }

  list(): readonly ImageRecord[] {
    return this.#statements.list.all().map(parseImage);
  }

  /** Images that no layer, no build and no copy has. */
  unneeded(): readonly ImageRecord[] {
    return this.#statements.unneeded.all().map(parseImage);
  }

  /** Images of a tenant whose size is not known yet. */
  unmeasured(tenant: string): readonly ImageRecord[] {
    return this.#statements.unmeasured.all(tenant).map(parseImage);
  }

  measured(id: ImageId, bytes: number): void {
    this.#statements.measured.run(bytes, id);
  }

  describe(id: ImageId, contents: readonly string[]): void {
    this.#statements.describe.run(contents.join("\n"), id);
  }

  /** Packages of an image; undefined where they were not listed. */
  contentsOf(id: ImageId): readonly string[] | undefined {
    const contents = this.#statements.contents.get(id)?.["contents"];
    return typeof contents === "string" ? contents.split("\n").filter(Boolean) : undefined;
  }

  /** Bytes of all measured images of a tenant. */
  usage(tenant: string): number {
    return Number(this.#statements.usage.get(tenant)?.["bytes"]);
  }

  findLayer(
    { key, tenant, backend }: Pick<Layer, "key" | "tenant" | "backend">,
    nowMs: number,
  ): Layer | undefined {
    const row = this.#statements.findLayer.get(nowMs, tenant, backend, key);
    if (row === undefined) return undefined;
    const content = JSON.parse(String(row["content"])) as LayerContent;
    return { key, tenant, backend, image: String(row["image"]), ...content, start: content.start };
  }

  addLayer({ key, tenant, backend, image, ...content }: Layer, nowMs: number): void {
    this.#statements.addLayer.run(tenant, backend, key, image, JSON.stringify(content), nowMs);
  }

  /** Removes layers that have not been used since a time. */
  forgetLayersBefore(usedAtMs: number): void {
    this.#statements.forgetOld.run(usedAtMs);
  }

  /** Removes layers of a tenant, but for those that were used last. */
  forgetLayers(tenant: string, kept: number): void {
    this.#statements.forget.run({ tenant, kept });
  }

  /** Removes the layers that have an image. */
  forgetLayersOf(image: ImageId): void {
    this.#statements.forgetOf.run(image);
  }
}

function prepare(database: DatabaseSync) {
  return {
    add: database.prepare("INSERT INTO image (id, backend, tenant) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"),
    remove: database.prepare("DELETE FROM image WHERE id = ?"),
    list: database.prepare("SELECT * FROM image"),
    unneeded: database.prepare(
      `SELECT * FROM image WHERE NOT EXISTS (SELECT 1 FROM layer WHERE layer.image = image.id)
         AND NOT EXISTS (SELECT 1 FROM build WHERE build.image = image.id)
         AND NOT EXISTS (SELECT 1 FROM copy WHERE copy.image = image.id)`,
    ),
    unmeasured: database.prepare("SELECT * FROM image WHERE tenant = ? AND bytes IS NULL"),
    measured: database.prepare("UPDATE image SET bytes = ? WHERE id = ?"),
    describe: database.prepare("UPDATE image SET contents = ? WHERE id = ?"),
    contents: database.prepare("SELECT contents FROM image WHERE id = ?"),
    usage: database.prepare("SELECT coalesce(sum(bytes), 0) AS bytes FROM image WHERE tenant = ?"),
    findLayer: database.prepare(
      `UPDATE layer SET used_at_ms = ? WHERE tenant = ? AND backend = ? AND key = ? RETURNING image, content`,
    ),
    addLayer: database.prepare(
      `INSERT OR REPLACE INTO layer (tenant, backend, key, image, content, used_at_ms) VALUES (?, ?, ?, ?, ?, ?)`,
    ),
    forgetOld: database.prepare("DELETE FROM layer WHERE used_at_ms < ?"),
    forget: database.prepare(
      `DELETE FROM layer WHERE tenant = :tenant AND (tenant, backend, key) NOT IN
         (SELECT tenant, backend, key FROM layer WHERE tenant = :tenant ORDER BY used_at_ms DESC LIMIT :kept)`,
    ),
    forgetOf: database.prepare("DELETE FROM layer WHERE image = ?"),
  };
}

function parseImage(row: Readonly<Record<string, unknown>>): ImageRecord {
  return { id: String(row["id"]), backend: String(row["backend"]), tenant: String(row["tenant"]) };
}
