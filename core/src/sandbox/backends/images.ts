import { createHash } from "node:crypto";
import { createReadStream, createWriteStream } from "node:fs";
import { constants, mkdir, open, readFile, rename, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { constants as compression, createZstdDecompress } from "node:zlib";
import { z } from "zod";
import { ignoring, messageOf, SandboxError } from "../../kernel/errors.js";
import type { ImageSource } from "../contract/backend.js";
import { MEBIBYTE } from "../../config/units.js";

/** Name of the image in a prepared layout. */
const PREPARED_REFERENCE = "image";

const DIGEST = /^sha256:([0-9a-f]{64})$/;
const MAX_JSON_BYTES = 4 * 2 ** 20;
const MAX_TYPE_LENGTH = 255;
/** More than twice those of any other tool. */
const MAX_LAYERS = 256;
/** Logarithm of the memory that decompressing a layer may take: the most that zstd writes unless it is told to. */
const ZSTD_WINDOW = 27;
/** Bytes of the headers of an entry, with some to spare for long names. */
const HEADER_BYTES = 4_096;

const TYPE = "application/vnd.oci.image";
const MANIFEST = `${TYPE}.manifest.v1+json`;
const CONFIG = `${TYPE}.config.v1+json`;
const ARCHIVE = `${TYPE}.layer.v1.tar`;
const ZSTD = `${ARCHIVE}+zstd`;
const LAYERS: readonly string[] = [ARCHIVE, `${ARCHIVE}+gzip`, ZSTD];
const NAME = "org.opencontainers.image.ref.name";

const descriptor = z.object({
  mediaType: z.string().max(MAX_TYPE_LENGTH),
  digest: z.string().regex(DIGEST),
  size: z.int().min(0),
  annotations: z.record(z.string(), z.string()).optional(),
});
const index = z.object({ manifests: z.array(descriptor) });
const manifest = z.object({ config: descriptor, layers: z.array(descriptor).max(MAX_LAYERS) });
type Descriptor = z.infer<typeof descriptor>;

/**
 * Writes a layout that has one image of a source, as umoci takes it: its layers are links to those of the source, and
 * those that umoci cannot read are decompressed.
 * @param options `seenAt` is the path of the source's layout where umoci runs.
 * @throws SandboxError image_invalid, image_too_large, or the signal's reason.
 */
export async function prepareLayout(
  source: ImageSource,
  options: { readonly directory: string; readonly seenAt: string },
  signal: AbortSignal,
): Promise<void> {
  const { directory, seenAt } = options;
  const found = await findManifest(source);
  const blobs = join(directory, "blobs/sha256");
  await mkdir(blobs, { recursive: true });
  await writeFile(join(blobs, hexOf(found.config)), await readSmall(source, found.config));
  const layers: Descriptor[] = [];
  const room = { bytes: source.maxBytes + source.maxEntries * HEADER_BYTES };
  for (const layer of found.layers) {
    await checkSize(source, layer);
    if (layer.mediaType === ZSTD) {
      layers.push(await decompress(source, layer, { blobs, room }, signal));
    } else {
      // Two layers may be the same.
      const link = symlink(join(seenAt, pathOf(layer)), join(blobs, hexOf(layer)));
      await link.catch(ignoring("EEXIST"));
      layers.push(layer);
    }
  }
  const text = JSON.stringify({ schemaVersion: 2, config: found.config, layers });
  const hex = createHash("sha256").update(text).digest("hex");
  await writeFile(join(blobs, hex), text);
  const named = { mediaType: MANIFEST, digest: `sha256:${hex}`, size: Buffer.byteLength(text) };
  const manifests = [{ ...named, annotations: { [NAME]: PREPARED_REFERENCE } }];
  await writeFile(join(directory, "index.json"), JSON.stringify({ schemaVersion: 2, manifests }));
  await writeFile(join(directory, "oci-layout"), JSON.stringify({ imageLayoutVersion: "1.0.0" }));
}

async function findManifest(source: ImageSource): Promise<z.infer<typeof manifest>> {
  const text = await readFile(join(source.layout, "index.json")).catch((error: unknown) => {
    throw invalid("it has no index", error);
  });
  const { manifests } = parse(index, text, "its index");
  const named = manifests.filter(({ annotations }) => annotations?.[NAME] === source.reference);
  const [chosen, ...others] = named;
  if (chosen === undefined || others.length > 0) {
    throw invalid(`its index names '${source.reference}' ${named.length} times`);
  }
  if (chosen.mediaType !== MANIFEST) throw invalid(`'${chosen.mediaType}' is no manifest`);
  const found = parse(manifest, await readSmall(source, chosen), "its manifest");
  if (found.config.mediaType !== CONFIG) throw invalid(`'${found.config.mediaType}' is no configuration`);
  const unknown = found.layers.find(({ mediaType }) => !LAYERS.includes(mediaType));
  if (unknown !== undefined) throw invalid(`its layers are of an unknown type, '${unknown.mediaType}'`);
  return found;
}

/** Contents of a small blob, verified. */
async function readSmall(source: ImageSource, blob: Descriptor): Promise<Buffer> {
  if (blob.size > MAX_JSON_BYTES) throw invalid(`the blob ${blob.digest} is too large`);
  await checkSize(source, blob);
  const data = await readFile(join(source.layout, pathOf(blob)));
  const hex = createHash("sha256").update(data).digest("hex");
  if (hex !== hexOf(blob)) throw invalid(`the blob ${blob.digest} has another digest`);
  return data;
}

/** Other bytes of a layer are checked when it is read. */
async function checkSize({ layout }: ImageSource, blob: Descriptor): Promise<void> {
  const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  const file = await open(join(layout, pathOf(blob)), flags).catch((error: unknown) => {
    throw invalid(`the blob ${blob.digest} is missing`, error);
  });
  await using _open = file;
  const found = await file.stat();
  if (!found.isFile() || found.size !== blob.size) throw invalid(`the blob ${blob.digest} has another size`);
}

/** Decompresses a layer into a blob without compression. @param to `room` is what layers may still have together. */
async function decompress(
  source: ImageSource,
  layer: Descriptor,
  { blobs, room }: { readonly blobs: string; readonly room: { bytes: number } },
  signal: AbortSignal,
): Promise<Descriptor> {
  const compressed = createHash("sha256");
  const archive = createHash("sha256");
  let size = 0;
  const path = join(blobs, `${hexOf(layer)}.new`);
  try {
    await pipeline(
      createReadStream(join(source.layout, pathOf(layer))),
      async function* (chunks: AsyncIterable<Buffer>) {
        for await (const chunk of chunks) {
          compressed.update(chunk);
          yield chunk;
        }
      },
      createZstdDecompress({ params: { [compression.ZSTD_d_windowLogMax]: ZSTD_WINDOW } }),
      async function* (chunks: AsyncIterable<Buffer>) {
        for await (const chunk of chunks) {
          archive.update(chunk);
          size += chunk.byteLength;
          room.bytes -= chunk.byteLength;
          if (room.bytes < 0) throw imageTooLarge(source);
          yield chunk;
        }
      },
      createWriteStream(path),
      { signal },
    );
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof SandboxError || isOfHost(error)) throw error;
    throw invalid(`the layer ${layer.digest} cannot be decompressed: ${messageOf(error)}`, error);
  }
  if (compressed.digest("hex") !== hexOf(layer))
    throw invalid(`the layer ${layer.digest} has another digest`);
  const hex = archive.digest("hex");
  await rename(path, join(blobs, hex));
  return { mediaType: ARCHIVE, digest: `sha256:${hex}`, size };
}

/** True for a failed system call, which no layer can cause. */
function isOfHost(error: unknown): boolean {
  return (error as NodeJS.ErrnoException).syscall !== undefined;
}

function parse<T>(schema: z.ZodType<T>, text: Buffer, what: string): T {
  let value: unknown;
  try {
    value = JSON.parse(text.toString());
  } catch (error) {
    throw invalid(`${what} is no JSON`, error);
  }
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw invalid(`${what} is not valid: ${issue?.path.join(".")}: ${issue?.message}`);
}

function pathOf(blob: Descriptor): string {
  return join("blobs/sha256", hexOf(blob));
}

function hexOf({ digest }: Descriptor): string {
  return DIGEST.exec(digest)?.[1] ?? "";
}

function invalid(reason: string, cause?: unknown): SandboxError {
  return new SandboxError("image_invalid", `the image cannot be unpacked: ${reason}`, { cause });
}

/** Refuses an image that has reached a limit while it was unpacked. */
export function imageTooLarge({ maxBytes, maxEntries }: ImageSource): SandboxError {
  const text = `the image unpacks to more than ${maxBytes} bytes or ${maxEntries} files, or takes too long`;
  return new SandboxError("image_too_large", text);
}

const MAX_REASON_LENGTH = 300;
/** Beside what an image of that size takes at most, a minute. */
const CPU_SECONDS = 60;
const SLOWEST_BYTES_PER_SECOND = 8 * MEBIBYTE;
const SLOWEST_ENTRIES_PER_SECOND = 1_000;

/** Arguments by which umoci(1) unpacks a prepared layout into an empty directory. */
export function unpackArguments(layout: string, root: string): readonly string[] {
  return ["--log", "error", "raw", "unpack", "--image", `${layout}:${PREPARED_REFERENCE}`, root];
}

/** Processor time that unpacking an image takes at most. */
export function unpackCpuSeconds({ maxBytes, maxEntries }: ImageSource): number {
  const slowest = maxBytes / SLOWEST_BYTES_PER_SECOND + maxEntries / SLOWEST_ENTRIES_PER_SECOND;
  return Math.ceil(CPU_SECONDS + slowest);
}

/**
 * Why umoci(1) has failed.
 * @param run `isKilled` by a limit of time or memory.
 * @param quota matches what it says when the root has reached a limit of this image alone.
 */
export function unpackFailure(
  run: { readonly isKilled: boolean; readonly code: number; readonly output: string },
  source: ImageSource,
  quota?: RegExp,
): SandboxError {
  const { code, isKilled, output } = run;
  if (isKilled || /file too large|SIGXFSZ/.test(output) || quota?.test(output)) return imageTooLarge(source);
  if (/no space left on device|dis[ck] quota exceeded/.test(output)) {
    return new SandboxError("host_resources_exhausted", "the host has no space for the image");
  }
  // Names in layers may contain any character.
  const line =
    output
      .replaceAll(/[^\P{C}\n]/gu, "")
      .trim()
      .split("\n")
      .at(-1) ?? "";
  const told = line.replace(/^.*?create rootfs: (unpack \w+: )?/, "").slice(0, MAX_REASON_LENGTH);
  const reason = told === "" ? `umoci ended with ${code}` : told;
  return new SandboxError("image_invalid", `the image cannot be unpacked: ${reason}`);
}
