import { Readable } from "node:stream";
import { definePlugin, SandboxError, type SCOPES } from "@coppice/core";
import {
  memoryBackend,
  type MemoryBackendOptions,
  type MemoryBackendPlugin,
  type MemoryFiles,
  startTestServer,
  type TestServer,
  type TestServerOptions,
} from "@coppice/core/testing";
import commands from "@coppice/plugin-commands";
import sandboxApi from "@coppice/plugin-sandbox-api";
import type { BuildResult } from "../model/layer.js";
import type { BuildRequest } from "../model/build-request.js";
import type { BuildSurroundings } from "../model/builder.js";
import { type Imaging, templatesPlugin } from "../plugin.js";
import { ScriptedBuilder } from "./scripted-builder.js";
import { REASONS } from "../reasons.js";

export interface TemplatesServerOptions extends TestServerOptions {
  /** Of the plugin. */
  readonly settings?: Readonly<Record<string, unknown>>;
  /** Of the backend. */
  readonly memory?: MemoryBackendOptions;
  /** What the builder does, from the start of the server on; `make` is what it does otherwise. */
  readonly script?: (
    request: BuildRequest,
    surroundings: BuildSurroundings,
    make: () => Promise<BuildResult>,
  ) => BuildResult | Promise<BuildResult>;
  /** Without one, nothing can be pushed. */
  readonly pusher?: Imaging["pusher"];
  /** Backend of an earlier server, with its images and sandboxes. */
  readonly backend?: MemoryBackendPlugin;
}

export interface Asked<Body> {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  readonly json: Body;
}

export interface TemplatesServer extends TestServer {
  readonly builder: ScriptedBuilder;
  readonly backend: MemoryBackendPlugin;
  /** Sends a request, `POST /v3/templates`, as a tenant. */
  ask<Body>(route: string, body?: unknown, tenant?: string): Promise<Asked<Body>>;
  /** Requests a build and starts it. */
  build(name: string, more?: BuildOptions): Promise<Requested>;
  /** Waits until a build has ended. */
  ended(requested: Requested, tenant?: string): Promise<Status>;
}

export interface BuildOptions {
  readonly tenant?: string;
  readonly tags?: readonly string[];
  readonly start?: object;
}

export interface Requested {
  readonly templateID: string;
  readonly buildID: string;
  readonly public: boolean;
  readonly names: readonly string[];
  readonly aliases: readonly string[];
  readonly tags: readonly string[];
}

export interface LogEntryBody {
  readonly timestamp: string;
  readonly level: string;
  readonly message: string;
  readonly step?: string;
}

export interface Status {
  readonly templateID: string;
  readonly buildID: string;
  readonly status: string;
  readonly logEntries: readonly LogEntryBody[];
  readonly logs: readonly string[];
  readonly reason?: {
    readonly message: string;
    readonly step?: string;
    readonly logEntries: readonly LogEntryBody[];
  };
}

export const START = { fromImage: "debian:12", steps: [] };

const NO_PUSHER: Imaging["pusher"] = {
  target() {
    throw new SandboxError(REASONS.image_target_invalid, "there are no registries");
  },
};

/** A guard for tests: the headers `x-tenant` and `x-scope` say who asks. */
const tenants = definePlugin({
  name: "tenants",
  setup(context) {
    context.guard("api", ({ headers }) => ({
      tenant: String(headers["x-tenant"] ?? "default"),
      name: "tester",
      scopes: new Set([(headers["x-scope"] ?? "admin") as (typeof SCOPES)[number]]),
    }));
  },
});

/** A server whose templates are built by a script. */
export async function templatesServer(options: TemplatesServerOptions = {}): Promise<TemplatesServer> {
  const backend =
    options.backend ?? memoryBackend({ snapshots: {}, images: { onUnpack: writeFour }, ...options.memory });
  const builder = new ScriptedBuilder(backend.backend);
  const { script } = options;
  if (script !== undefined)
    builder.script = (request, surroundings) =>
      script(request, surroundings, () => builder.make(request, surroundings));
  const server = await startTestServer({
    ...options,
    plugins: [
      [backend, {}],
      [tenants, {}],
      [sandboxApi, {}],
      [commands, {}],
      [templatesPlugin(() => ({ builder, pusher: options.pusher ?? NO_PUSHER })), options.settings ?? {}],
      ...(options.plugins ?? []),
    ],
  });
  const ask = async <Body>(route: string, body?: unknown, tenant = "default"): Promise<Asked<Body>> => {
    const [method = "", path = ""] = route.split(" ");
    const response = await fetch(server.url + path, {
      method,
      headers: { "x-tenant": tenant },
      ...(body !== undefined && { body: typeof body === "string" ? body : JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, headers: response.headers, text, json: parsed(text) as Body };
  };
  return {
    ...server,
    builder,
    backend,
    ask,
    async build(name, { tenant, tags, start = START } = {}) {
      const { json: requested } = await ask<Requested>("POST /v3/templates", { name, tags }, tenant);
      const { templateID, buildID } = requested;
      const started = await ask(`POST /v2/templates/${templateID}/builds/${buildID}`, start, tenant);
      if (started.status !== 202) throw new Error(`the build did not start: ${started.text}`);
      return requested;
    },
    async ended({ templateID, buildID }, tenant) {
      for (let attempts = 0; attempts < 1000; attempts += 1) {
        const { json } = await ask<Status>(
          `GET /templates/${templateID}/builds/${buildID}/status`,
          undefined,
          tenant,
        );
        if (json.status !== "building") return json;
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      throw new Error("the build does not end");
    },
  };
}

/** Gives an image its 4 bytes. */
async function writeFour(_id: string, _source: unknown, files: MemoryFiles): Promise<void> {
  await files.write("/four", Readable.from([Buffer.from("four")]));
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
