import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { rename, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { ARCHITECTURE } from "./architecture.js";

/** Name of the image in a layout of ours. */
export const LAYOUT_NAME = "image";

/** Writes an OCI image layout of one layer. The tar file is moved into it. @returns the image's digest */
export async function writeLayout(layout: string, tar: string): Promise<string> {
  const hash = createHash("sha256");
  await pipeline(createReadStream(tar, { highWaterMark: 1024 * 1024 }), hash);
  const layer = { digest: `sha256:${hash.digest("hex")}`, size: (await stat(tar)).size };
  await rename(tar, join(layout, "blobs", layer.digest.replace(":", "/")));
  const config = await writeBlob(layout, {
    architecture: ARCHITECTURE,
    os: "linux",
    config: {},
    rootfs: { type: "layers", diff_ids: [layer.digest] },
  });
  const manifest = await writeBlob(layout, {
    schemaVersion: 2,
    mediaType: "application/vnd.oci.image.manifest.v1+json",
    config: { mediaType: "application/vnd.oci.image.config.v1+json", ...config },
    layers: [{ mediaType: "application/vnd.oci.image.layer.v1.tar", ...layer }],
  });
  const named = { annotations: { "org.opencontainers.image.ref.name": LAYOUT_NAME } };
  const entry = { mediaType: "application/vnd.oci.image.manifest.v1+json", ...manifest, ...named };
  await writeFile(join(layout, "index.json"), JSON.stringify({ schemaVersion: 2, manifests: [entry] }));
  await writeFile(join(layout, "oci-layout"), JSON.stringify({ imageLayoutVersion: "1.0.0" }));
  return manifest.digest;
}

async function writeBlob(layout: string, value: unknown): Promise<{ digest: string; size: number }> {
  const bytes = Buffer.from(JSON.stringify(value));
  const hex = createHash("sha256").update(bytes).digest("hex");
  await writeFile(join(layout, "blobs/sha256", hex), bytes);
  return { digest: `sha256:${hex}`, size: bytes.length };
}
