import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Plugin } from "@coppice/core";
import { fakeClock, memoryBackend, startTestServer } from "@coppice/core/testing";
import sandboxApi from "@coppice/plugin-sandbox-api";
import { KeyStore, type NewKey } from "../keys/key-store.js";
import { plugin as access } from "../plugin.js";

export const START = Date.UTC(2026, 0, 1);

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  // Each test names the type of its answer.
  // oxlint-disable-next-line typescript/no-explicit-any
  readonly json: any;
}

export interface AccessServerOptions {
  readonly settings?: object;
  readonly server?: Readonly<Record<string, unknown>>;
  readonly plugins?: readonly Plugin[];
}

/** A server with the plugin, the control plane and a memory backend, and access to the key store. */
export async function startAccessServer({
  settings = {},
  server = {},
  plugins = [],
}: AccessServerOptions = {}) {
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-access-"));
  const clock = fakeClock(START);
  const memory = memoryBackend({ pausing: {}, resizing: {}, snapshots: {}, volumes: {} });
  const running = await startTestServer({
    clock,
    dataDir,
    server,
    plugins: [[memory], [sandboxApi], [access, settings], ...plugins.map((plugin) => [plugin] as const)],
  }).catch(async (error: unknown) => {
    await rm(dataDir, { recursive: true, force: true });
    throw error;
  });
  // Like the command line, another process has it open at the same time.
  const keys = new KeyStore(join(dataDir, "access"));
  return {
    ...running,
    clock,
    dataDir,
    backend: memory.backend,
    keys,
    /** Creates a key: of the tenant `acme`, with scope `exec`, by default. */
    newKey(wanted: Partial<NewKey> = {}): string {
      const usual: NewKey = { tenant: "acme", scopes: ["exec"], expiresAtMs: undefined, name: undefined };
      return keys.create({ ...usual, ...wanted }, clock.now()).key;
    },
    async call(route: string, headers: Record<string, string> = {}, body?: unknown): Promise<Answer> {
      const [method = "", path = ""] = route.split(" ");
      const response = await fetch(running.url + path, {
        method,
        headers,
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
      const text = await response.text();
      const isJson = response.headers.get("content-type")?.includes("json") ?? false;
      return { status: response.status, headers: response.headers, json: isJson ? JSON.parse(text) : text };
    },
    async [Symbol.asyncDispose]() {
      keys.close();
      await running.stop();
      await rm(dataDir, { recursive: true, force: true });
    },
  };
}
