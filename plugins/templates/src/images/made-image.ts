import { randomUUID } from "node:crypto";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import type { PulledImage } from "./image-puller.js";
import { layerOfFile, LAYOUT_NAME as NAME, writeLayout } from "./write-layout.js";

export interface MadeImage extends PulledImage {
  /** Of its manifest. */
  readonly digest: string;
}

/**
 * Makes an image of one layer.
 * @param parent for layouts, which the next start removes if this server does not.
 * @param write makes the tar file of the layer in a directory of its own.
 */
export async function makeImage(
  parent: string,
  write: (tar: string, directory: string) => Promise<void>,
): Promise<MadeImage> {
  const directory = join(parent, randomUUID());
  const remove = (): Promise<void> => rm(directory, { recursive: true, force: true });
  try {
    const layout = join(directory, NAME);
    await mkdir(join(layout, "blobs/sha256"), { recursive: true, mode: 0o700 });
    const tar = join(directory, "root.tar");
    await write(tar, directory);
    const digest = await writeLayout(layout, await layerOfFile(layout, tar));
    return { layout, digest, reference: NAME, environment: {}, [Symbol.asyncDispose]: remove };
  } catch (error) {
    await remove();
    throw error;
  }
}
