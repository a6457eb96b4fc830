import { randomBytes } from "node:crypto";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { Backends, type SandboxImage, type SandboxBackend } from "@coppice/core/backend";
import { startTestServer, writeImageLayout } from "@coppice/core/testing";
import linuxNamespaces from "@coppice/plugin-linux-namespaces";
import type { Benchmark, Run } from "../kit/benchmark.js";
import { spawnToEnd } from "../kit/spawn-to-end.js";

const MEBIBYTE = 2 ** 20;
const LARGEST = 300 * MEBIBYTE;
const FILE_BYTES = MEBIBYTE / 16;
const USER = "root";
const LIMITS = { maxBytes: 2 ** 31, maxEntries: 100_000 };

/** Images of linux-namespaces, whatever the backend of the server: unpacked, committed, and used. */
export const images: Benchmark = async ({ scratch }, { largeBytes }) => {
  const bytes = Math.min(largeBytes, LARGEST);
  const layout = join(scratch, "layout");
  await writeLayout(layout, bytes);
  const directory = join(scratch, "images");
  const server = await startTestServer({ plugins: [[linuxNamespaces, { directory }]] });
  const backend = server.resolve(Backends).get("linux-namespaces");
  const { signal } = new AbortController();
  const source = { layout, reference: "image", ...LIMITS };
  const lowest = newId();
  await backend.images?.unpack(lowest, source, signal);
  const image: SandboxImage = { id: lowest, user: USER };

  const unpackAlone = async (): Promise<Run> => {
    const root = join(scratch, newId());
    await spawnToEnd("umoci", ["--log", "error", "raw", "unpack", "--image", `${layout}:image`, root]);
    return { undo: () => rm(root, { recursive: true }) };
  };
  const unpack = async (): Promise<Run> => {
    const id = newId();
    await backend.images?.unpack(id, source, signal);
    return { undo: async () => backend.images?.remove(id) };
  };
  const createOnce = async (more: { readonly image?: SandboxImage }): Promise<Run> => {
    const sandbox = await provision(backend, more);
    return { undo: () => sandbox.destroy() };
  };
  const commit = async (files: number): Promise<Run> => {
    const sandbox = await provision(backend, { image });
    const block = Buffer.alloc(MEBIBYTE);
    for (let index = 0; index < files; index++) await sandbox.files.write(`/srv/${index}`, only(block));
    const id = newId();
    const startMs = performance.now();
    await sandbox.committing?.commit(id);
    const tookMs = performance.now() - startMs;
    return { tookMs, undo: async () => (await sandbox.destroy(), backend.images?.remove(id)) };
  };
  const size = `${Math.round(bytes / MEBIBYTE)} MiB`;
  return {
    comparisons: [
      {
        title: `images: unpack ${size}`,
        floor: { label: "umoci raw unpack", once: unpackAlone, bytes },
        contenders: [{ label: "images.unpack", once: unpack, bytes }],
      },
      {
        title: "images: a sandbox and its image",
        floor: { label: "provision of base", once: () => createOnce({}) },
        contenders: [
          { label: "provision of an image", once: () => createOnce({ image }) },
          { label: "commit of 1 MiB", once: () => commit(1) },
          { label: "commit of 64 MiB", once: () => commit(64) },
        ],
      },
    ],
    async close() {
      await server[Symbol.asyncDispose]();
    },
  };
};

async function provision(backend: SandboxBackend, more: { readonly image?: SandboxImage }) {
  const spec = { id: newId(), template: "base", limits: {}, allowInternetAccess: false, ...more };
  return backend.provision(spec, new AbortController().signal);
}

/** A layer of files that shrink to half of their size. */
async function writeLayout(layout: string, bytes: number): Promise<void> {
  const files = Array.from({ length: Math.ceil(bytes / FILE_BYTES) }, (_, index) => ({
    name: `usr/share/bench/${index}`,
    body: randomBytes(FILE_BYTES / 2).toString("hex"),
  }));
  const accounts = { name: "etc/passwd", body: "root:x:0:0::/root:/bin/sh\n" };
  await writeImageLayout(layout, { layers: [[accounts, ...files]] });
}

async function* only(block: Uint8Array): AsyncGenerator<Uint8Array> {
  yield block;
}

function newId(): string {
  return `bench${randomBytes(8).toString("hex")}`;
}
