import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openTestRegistry, smallRoot, type TestRegistry, writeImageLayout } from "@coppice/core/testing";

/** A registry that stands for Docker Hub, with one small image under each of its names. */
export interface ImageHub extends AsyncDisposable {
  readonly registry: TestRegistry;
  /** `registries` of the plugin `templates`, for a server that pulls from it. */
  readonly registries: object;
  /** Puts the image under another name. */
  add(name: string): void;
}

/** @param names such as `library/ubuntu:22.04`. @param config of the image. */
export async function openImageHub(names: readonly string[], config: object = {}): Promise<ImageHub> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-image-hub-"));
  const registry = await openTestRegistry();
  await writeImageLayout(directory, { layers: [smallRoot()], config });
  const add = (name: string): void => registry.add(name, directory);
  names.forEach(add);
  return {
    registry,
    add,
    registries: { mirrors: { "docker.io": registry.address }, insecure: [registry.address] },
    async [Symbol.asyncDispose]() {
      await registry[Symbol.asyncDispose]();
      await rm(directory, { recursive: true });
    },
  };
}
