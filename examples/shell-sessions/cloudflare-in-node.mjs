// Lets Node run Cloudflare's unmodified sandbox client: npm install @cloudflare/sandbox@0.12.10
//
// The client imports two modules that only Cloudflare's runtime has. This file is both of them: its hook resolves their
// names to itself, and "the container" of the client becomes a URL of Coppice. Needs Node 22.15 or newer.
import { registerHooks } from "node:module";

// Its log says each call. The client reads this variable when it is imported.
process.env.SANDBOX_LOG_LEVEL ??= "error";

const ABSENT = new Set(["cloudflare:workers", "@cloudflare/containers"]);

registerHooks({
  resolve: (specifier, context, next) =>
    ABSENT.has(specifier) ? { url: import.meta.url, shortCircuit: true } : next(specifier, context),
});

/**
 * The client's exports. The import has to follow the hook, so it cannot be a static one.
 * @returns {Promise<typeof import("@cloudflare/sandbox")>}
 */
export function importClient() {
  return import("@cloudflare/sandbox");
}

/**
 * The documented class `Sandbox`, for one sandbox of Coppice.
 * @param {object} options
 * @param {string} options.url of the sandbox's API, without a slash at its end
 * @param {Record<string, string>} [options.headers] sent with every request
 * @param {string} [options.name] part of the name of the session that calls without one share
 */
export async function openSandbox({ url, headers = {}, name = "default" }) {
  const { Sandbox } = await importClient();
  const values = new Map();
  const storage = {
    get: async (key) => values.get(key),
    put: async (key, value) => void values.set(key, value),
    delete: async (key) => values.delete(key),
    list: async () => new Map(values),
    transaction: (run) => run(storage),
    getAlarm: async () => null,
    setAlarm: async () => {},
    deleteAlarm: async () => {},
  };
  let started = Promise.resolve();
  const context = {
    id: { toString: () => name, name },
    storage,
    container: { running: true },
    props: {},
    blockConcurrencyWhile: (run) => (started = run()),
    waitUntil() {},
    abort() {},
  };
  const sandbox = new Sandbox(context, { url, headers });
  await started;
  return sandbox;
}

// What follows stands for `cloudflare:workers`.

export class DurableObject {
  constructor(ctx, env) {
    this.ctx = ctx;
    this.env = env;
  }
}

export class WorkerEntrypoint extends DurableObject {}

export class RpcTarget {}

export const env = {};
export const exports = {};
export const tracing = undefined;

// And this for `@cloudflare/containers`.

export class Container extends DurableObject {
  envVars = {};
  sleepAfter = "10m";
  defaultPort = 3000;

  containerFetch(target, init) {
    const { pathname, search } = new URL(typeof target === "string" ? target : target.url);
    const headers = { ...init.headers, ...this.env.headers };
    return fetch(this.env.url + pathname + search, { ...init, headers });
  }

  // Coppice starts and ends the sandbox.
  async getState() {
    return { status: "healthy" };
  }
  async startAndWaitForPorts() {}
  async stop() {}
  async destroy() {}
  renewActivityTimeout() {}
  onStop() {}
  onActivityExpired() {}
}

export class ContainerProxy {}

export function getContainer() {
  throw new Error("there are no bindings here: call openSandbox");
}

export const switchPort = (request) => request;
