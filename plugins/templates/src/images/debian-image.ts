import { createHash, randomUUID } from "node:crypto";
import { createReadStream } from "node:fs";
import { mkdir, rename, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { BuildFailure } from "../model/build-failure.js";
import type { TemplatesConfig } from "../templates-config.js";
import { ARCHITECTURE } from "./architecture.js";
import type { HostPrograms } from "./host-programs.js";
import type { PulledImage } from "./image-puller.js";

export interface DebianImagesOptions {
  readonly programs: HostPrograms;
  readonly settings: TemplatesConfig["debian"];
  /** For layouts, which the next start removes if this server does not. */
  readonly directory: () => string;
}

export interface WantedDebian {
  readonly suite: string;
  readonly packages: readonly string[];
}

export interface MadeImage extends PulledImage {
  /** Of its manifest. */
  readonly digest: string;
}

const NAME = "image";

/** Makes images of Debian packages with mmdebstrap. */
export class DebianImages {
  readonly #options: DebianImagesOptions;

  constructor(options: DebianImagesOptions) {
    this.#options = options;
  }

  /** Equal packages of equal versions make equal images. @throws BuildFailure, the signal's reason */
  async make({ suite, packages }: WantedDebian, signal: AbortSignal): Promise<MadeImage> {
    const { programs, settings } = this.#options;
    const directory = join(this.#options.directory(), randomUUID());
    const remove = (): Promise<void> => rm(directory, { recursive: true, force: true });
    try {
      const layout = join(directory, NAME);
      await mkdir(join(layout, "blobs/sha256"), { recursive: true, mode: 0o700 });
      const tar = join(directory, "root.tar");
      // In a user namespace: the scripts of packages have no power over this host.
      const words = ["--mode=unshare", "--variant=minbase", "--format=tar", "--quiet"];
      if (packages.length > 0) words.push(`--include=${packages.join(",")}`);
      const { code, output } = await programs.run(settings.mmdebstrap, {
        args: [...words, "--", suite, tar, ...settings.sources],
        cwd: directory,
        environment: {
          // All times of the image: it is reproducible.
          SOURCE_DATE_EPOCH: "0",
          // Files of other owners, which root alone could remove if mmdebstrap did not.
          ...(process.getuid?.() === 0 && { TMPDIR: directory }),
        },
        signal,
      });
      if (code === 127)
        throw new BuildFailure("this server has no mmdebstrap, which its operator can install", "base");
      if (code !== 0) throw new BuildFailure(`mmdebstrap failed: ${lastError(output)}`, "base");
      const digest = await writeLayout(layout, tar);
      return { layout, digest, reference: NAME, environment: {}, [Symbol.asyncDispose]: remove };
    } catch (error) {
      await remove();
      throw error;
    }
  }
}

/** Writes an OCI image layout of one layer. The tar file is moved into it. @returns the image's digest */
async function writeLayout(layout: string, tar: string): Promise<string> {
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
  const named = { annotations: { "org.opencontainers.image.ref.name": NAME } };
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

/** What a failed mmdebstrap says: its errors, else its last line. */
function lastError(output: string): string {
  const lines = output.trim().split("\n");
  const errors = lines.filter((line) => line.startsWith("E: "));
  return (errors.length > 0 ? errors.slice(-3).join("; ") : (lines.at(-1) ?? "")).slice(0, 500);
}
