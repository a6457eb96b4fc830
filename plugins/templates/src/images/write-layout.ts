import { createHash, type Hash } from "node:crypto";
import { createReadStream, createWriteStream } from "node:fs";
import { rename, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { createGzip } from "node:zlib";
import { ARCHITECTURE } from "./host-programs.js";

/** Name of the image in a layout of ours. */
export const LAYOUT_NAME = "image";

const ARCHIVE = "application/vnd.oci.image.layer.v1.tar";

/** A layer among the blobs of a layout. */
export interface LayoutLayer {
  readonly mediaType: string;
  readonly digest: string;
  readonly size: number;
  /** Digest of the archive in it. */
  readonly archive: string;
}

/** Makes a layer of a tar file, which is moved into the layout. */
export async function layerOfFile(layout: string, tar: string): Promise<LayoutLayer> {
  const hash = createHash("sha256");
  await pipeline(createReadStream(tar, { highWaterMark: 1024 * 1024 }), hash);
  return moveLayer(layout, tar, { mediaType: ARCHIVE, digest: digestOf(hash) });
}

/** Makes a compressed layer of a tar archive: the same archive makes the same layer. */
export async function layerOfArchive(
  layout: string,
  archive: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
): Promise<LayoutLayer> {
  const [inner, outer] = [createHash("sha256"), createHash("sha256")];
  const path = join(layout, "layer.new");
  const compressed = createWriteStream(path);
  await pipeline(archive, hashing(inner), createGzip(), hashing(outer), compressed, { signal });
  const layer = { mediaType: `${ARCHIVE}+gzip`, digest: digestOf(outer), archive: digestOf(inner) };
  return moveLayer(layout, path, layer);
}

/**
 * Writes an OCI image layout of one layer.
 * @param settings of its programs, such as `Env`. @returns the image's digest
 */
export async function writeLayout(
  layout: string,
  { archive, ...layer }: LayoutLayer,
  settings: object = {},
): Promise<string> {
  const config = await writeBlob(layout, {
    architecture: ARCHITECTURE,
    os: "linux",
    config: settings,
    rootfs: { type: "layers", diff_ids: [archive] },
  });
  const manifest = await writeBlob(layout, {
    schemaVersion: 2,
    mediaType: "application/vnd.oci.image.manifest.v1+json",
    config: { mediaType: "application/vnd.oci.image.config.v1+json", ...config },
    layers: [layer],
  });
  const named = { annotations: { "org.opencontainers.image.ref.name": LAYOUT_NAME } };
  const entry = { mediaType: "application/vnd.oci.image.manifest.v1+json", ...manifest, ...named };
  await writeFile(join(layout, "index.json"), JSON.stringify({ schemaVersion: 2, manifests: [entry] }));
  await writeFile(join(layout, "oci-layout"), JSON.stringify({ imageLayoutVersion: "1.0.0" }));
  return manifest.digest;
}

async function moveLayer(
  layout: string,
  path: string,
  {
    mediaType,
    digest,
    archive = digest,
  }: Pick<LayoutLayer, "mediaType" | "digest"> & { readonly archive?: string },
): Promise<LayoutLayer> {
  const { size } = await stat(path);
  await rename(path, join(layout, "blobs", digest.replace(":", "/")));
  return { mediaType, digest, size, archive };
}

function hashing(hash: Hash) {
  return async function* (chunks: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array> {
    for await (const chunk of chunks) {
      hash.update(chunk);
      yield chunk;
    }
  };
}

function digestOf(hash: Hash): string {
  return `sha256:${hash.digest("hex")}`;
}

async function writeBlob(layout: string, value: unknown): Promise<{ digest: string; size: number }> {
  const bytes = Buffer.from(JSON.stringify(value));
  const hex = createHash("sha256").update(bytes).digest("hex");
  await writeFile(join(layout, "blobs/sha256", hex), bytes);
  return { digest: `sha256:${hex}`, size: bytes.length };
}
