import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { boot, type Server } from "../boot/boot.js";
import type { ServedRoute } from "../http/surfaces/surface.js";
import { configFromValues } from "../config/read.js";
import type { Clock } from "../kernel/clock.js";
import type { CleanupFailure } from "../kernel/cleanup.js";
import type { Token } from "../kernel/token.js";
import { createLogger, type Logger } from "../observe/logger.js";
import type { Plugin } from "../plugin/plugin.js";
import { Sandboxes } from "../sandbox/life/sandboxes.js";

/** Settings of a server of the tests. */
export interface TestServerOptions {
  readonly plugins?: readonly (readonly [plugin: Plugin, settings?: unknown])[];
  /** Overrides of the test's server configuration, by top-level key. */
  readonly server?: Readonly<Record<string, unknown>>;
  readonly clock?: Clock;
  /** Silent when absent. */
  readonly log?: Logger;
  /** Kept after `stop` when given, for a second server. */
  readonly dataDir?: string;
}

/** A whole server on free loopback ports. */
export interface TestServer extends AsyncDisposable {
  /** Base URL of the `api` listener, which also accepts everything addressed to a sandbox. */
  readonly url: string;
  /** Base URLs by listener: `api`, `envd`, `code`, `ops` unless `server.listeners` says otherwise. */
  readonly urls: Readonly<Record<string, string>>;
  readonly sandboxes: Sandboxes;
  readonly routes: readonly ServedRoute[];
  resolve<T>(token: Token<T>): T;
  /** Stops the server and removes its data. @throws Error when a clean-up failed. */
  stop(): Promise<void>;
}

const LISTENERS = Object.fromEntries(
  ["api", "envd", "code", "ops"].map((name) => [name, { host: "127.0.0.1", port: 0 }]),
);

/** Boots a real server with the given plugins. @throws BootError */
export async function startTestServer(options: TestServerOptions = {}): Promise<TestServer> {
  const dataDir = options.dataDir ?? (await mkdtemp(join(tmpdir(), "coppice-test-")));
  const removeData = async (): Promise<void> => {
    if (options.dataDir === undefined) await rm(dataDir, { recursive: true, force: true });
  };
  const entries = options.plugins ?? [];
  const values = {
    listeners: LISTENERS,
    dataDir,
    http: { drainTimeout: "200ms" },
    ...options.server,
    plugins: Object.fromEntries(entries.map(([plugin, settings]) => [plugin.name, settings ?? {}])),
  };
  let server: Server;
  try {
    server = await boot({
      config: configFromValues(values, "test configuration"),
      plugins: new Map(entries.map(([plugin]) => [plugin.name, plugin])),
      log: options.log ?? createLogger("silent"),
      ...(options.clock && { clock: options.clock }),
    });
  } catch (error) {
    await removeData();
    throw error;
  }
  const urls = Object.fromEntries(server.listeners.map(({ name, url }) => [name, url]));
  const stop = async (): Promise<void> => {
    const failures: readonly CleanupFailure[] = await server.stop();
    await removeData();
    if (failures.length > 0) {
      throw new AggregateError(
        failures.map(({ error }) => error),
        `the server did not stop cleanly: ${failures.map(({ owner, message }) => `${owner}: ${message}`).join("; ")}`,
      );
    }
  };
  return {
    url: urls["api"] ?? Object.values(urls)[0] ?? "",
    urls,
    sandboxes: server.resolve(Sandboxes),
    routes: server.routes,
    resolve: (token) => server.resolve(token),
    stop,
    [Symbol.asyncDispose]: stop,
  };
}
