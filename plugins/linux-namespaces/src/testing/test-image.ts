import { randomBytes } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ImageId, ImageSource, Sandbox, SandboxBackend } from "@coppice/core/backend";
import { type ImageLayoutOptions, type TarEntry, writeImageLayout } from "@coppice/core/testing";
import { findHostProgram } from "../launcher/host-programs.js";
import { UNPACKER } from "../storage/unpack-layers.js";
import { makeSandbox } from "./test-sandbox.js";

/** Lowest layer of a root without programs: files alone can be used. */
export const ROOT: readonly TarEntry[] = [
  { name: "./", type: "5" },
  { name: "etc/passwd", body: "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n" },
];

/** Reason why no image can be unpacked here; undefined when one can. */
export async function reasonWithoutUnpacker(): Promise<string | undefined> {
  const path = await findHostProgram([UNPACKER]);
  return path === undefined ? `the program ${UNPACKER} is missing` : undefined;
}

/** Unpacks an image from a layout that the test writes. @returns its id. */
export async function unpack(
  backend: SandboxBackend,
  options: ImageLayoutOptions,
  {
    prepare,
    ...limits
  }: Partial<ImageSource> & {
    /** Changes the layout before it is unpacked. */
    readonly prepare?: (layout: string) => Promise<void>;
  } = {},
): Promise<ImageId> {
  const layout = await mkdtemp(join(tmpdir(), "coppice-layout-"));
  const id = `test${randomBytes(8).toString("hex")}`;
  try {
    await writeImageLayout(layout, options);
    await prepare?.(layout);
    const source = { layout, reference: "image", maxBytes: 2 ** 26, maxEntries: 1_000, ...limits };
    await backend.images?.unpack(id, source, new AbortController().signal);
    return id;
  } finally {
    await rm(layout, { recursive: true });
  }
}

/** Makes a sandbox of an image that the test destroys. */
export async function sandboxOf(backend: SandboxBackend, id: ImageId, snapshot?: string): Promise<Sandbox> {
  const image = { id, user: "root" };
  return makeSandbox(backend, { template: "image", image, ...(snapshot !== undefined && { snapshot }) });
}

export async function readText({ files }: Sandbox, path: string): Promise<string> {
  await using file = await files.read(path);
  return Buffer.concat(await Array.fromAsync(file.content())).toString();
}

export async function writeText({ files }: Sandbox, path: string, text: string): Promise<void> {
  await files.write(
    path,
    (async function* () {
      yield Buffer.from(text);
    })(),
  );
}
