import { createHash } from "node:crypto";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { type TarEntry, tarArchive } from "./tar-archive.js";

/** What names a blob of an image layout. */
export interface BlobDescriptor {
  readonly mediaType: string;
  readonly digest: string;
  readonly size: number;
  readonly annotations?: Readonly<Record<string, string>>;
}

/** An image manifest of OCI. */
export interface ImageManifest {
  readonly schemaVersion: number;
  readonly config: BlobDescriptor;
  readonly layers: readonly BlobDescriptor[];
}

/** A layer in a form of its own. */
export interface LayerBlob {
  readonly blob: Buffer;
  /** The archive in it, whose digest the configuration has. */
  readonly archive: Buffer;
  readonly mediaType: string;
}

/** Contents of an image layout. */
export interface ImageLayoutOptions {
  /** Lowest first: entries of an archive that is compressed with gzip, or a blob. */
  readonly layers: readonly (readonly TarEntry[] | LayerBlob)[];
  /** Name in the index; `image` when absent. */
  readonly reference?: string;
  /** Configuration of its programs, such as `Env`. */
  readonly config?: object;
  /** As OCI names it; that of this machine when absent. */
  readonly architecture?: string;
  /** Changes the manifest before it is written. */
  readonly change?: (manifest: ImageManifest) => unknown;
}

const TYPES = "application/vnd.oci.image";

/** Writes an OCI image layout, also one that no program would write. @param directory is made when it is missing. */
export async function writeImageLayout(directory: string, options: ImageLayoutOptions): Promise<void> {
  const { change = (manifest) => manifest, config = {}, reference = "image" } = options;
  const { architecture = process.arch === "x64" ? "amd64" : process.arch } = options;
  const blobs = join(directory, "blobs/sha256");
  await mkdir(blobs, { recursive: true });
  const write = async (blob: Buffer, mediaType: string): Promise<BlobDescriptor> => {
    const hex = sha256(blob);
    await writeFile(join(blobs, hex), blob);
    return { mediaType, digest: `sha256:${hex}`, size: blob.byteLength };
  };
  const writeJson = (value: unknown, mediaType: string): Promise<BlobDescriptor> =>
    write(Buffer.from(JSON.stringify(value)), mediaType);
  const layers = options.layers.map((layer) => ("blob" in layer ? layer : compressed(tarArchive(layer))));
  const settings = {
    architecture,
    os: "linux",
    config,
    rootfs: { type: "layers", diff_ids: layers.map(({ archive }) => `sha256:${sha256(archive)}`) },
  };
  const manifest = change({
    schemaVersion: 2,
    config: await writeJson(settings, `${TYPES}.config.v1+json`),
    layers: await Promise.all(layers.map(({ blob, mediaType }) => write(blob, mediaType))),
  });
  const named = await writeJson(manifest, `${TYPES}.manifest.v1+json`);
  const annotations = { "org.opencontainers.image.ref.name": reference };
  const index = { schemaVersion: 2, manifests: [{ ...named, annotations }] };
  await writeFile(join(directory, "index.json"), JSON.stringify(index));
  await writeFile(join(directory, "oci-layout"), JSON.stringify({ imageLayoutVersion: "1.0.0" }));
}

function compressed(archive: Buffer): LayerBlob {
  return { archive, blob: gzipSync(archive, { level: 1 }), mediaType: `${TYPES}.layer.v1.tar+gzip` };
}

function sha256(data: Uint8Array): string {
  return createHash("sha256").update(data).digest("hex");
}
