import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fakeClock, memoryBackend, startTestServer, type FakeClock } from "@coppice/core/testing";
import access from "@coppice/plugin-access";
import sandboxApi from "@coppice/plugin-sandbox-api";
import { plugin as events } from "../plugin.js";

/** Key of the default tenant, with every scope. */
export const API_KEY = "e2b_0123456789012345678901234567890123456789";

export interface Answer {
  readonly status: number;
  // Each test names the type of its answer.
  // oxlint-disable-next-line typescript/no-explicit-any
  readonly json: any;
}

export interface EventsServerOptions {
  readonly settings?: Readonly<Record<string, unknown>>;
  readonly webhooks?: Readonly<Record<string, unknown>>;
  readonly server?: Readonly<Record<string, unknown>>;
  /** Kept when given, for a second server. */
  readonly dataDir?: string;
  readonly clock?: FakeClock;
}

/** A server with the plugin, the control plane, and a memory backend with pausing and snapshots. */
export async function startEventsServer(options: EventsServerOptions = {}) {
  const { settings = {}, webhooks = {}, server = {}, clock = fakeClock() } = options;
  const dataDir = options.dataDir ?? (await mkdtemp(join(tmpdir(), "coppice-events-")));
  const memory = memoryBackend({ pausing: {}, snapshots: {}, resizing: {} });
  const running = await startTestServer({
    clock,
    dataDir,
    server,
    plugins: [
      [memory],
      [sandboxApi],
      [access, { apiKeys: [API_KEY] }],
      [events, { ...settings, webhooks: { privateTargets: ["127.0.0.0/8"], ...webhooks } }],
    ],
  });
  const call = async (route: string, body?: unknown): Promise<Answer> => {
    const [method = "", path = ""] = route.split(" ");
    const response = await fetch(running.url + path, {
      method,
      headers: { "x-api-key": API_KEY },
      ...(body !== undefined && { body: typeof body === "string" ? body : JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, json: text === "" ? undefined : JSON.parse(text) };
  };
  return {
    ...running,
    clock,
    dataDir,
    backend: memory.backend,
    call,
    async create(metadata: Record<string, string> = {}): Promise<string> {
      const { json } = await call("POST /v2/sandboxes", { templateID: "base", metadata });
      return json.sandboxID as string;
    },
    /** Types of a sandbox's events, without their prefix, oldest first. */
    async types(sandbox: string): Promise<readonly string[]> {
      const { json } = await call(`GET /events/sandboxes/${sandbox}?orderAsc=true&limit=100`);
      return (json as { type: string }[]).map(({ type }) => type.replace("sandbox.lifecycle.", ""));
    },
    async [Symbol.asyncDispose]() {
      await running.stop();
      if (options.dataDir === undefined) await rm(dataDir, { recursive: true, force: true });
    },
  };
}
