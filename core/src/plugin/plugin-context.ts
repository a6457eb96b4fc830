import { join } from "node:path";
import type { Registry } from "prom-client";
import type { Diagnosis } from "../observe/finding.js";
import type { Tenants } from "../bounds/tenants.js";
import type { Surfaces } from "../http/surfaces/surfaces.js";
import { WebSockets } from "../http/surfaces/web-sockets.js";
import type { Reloadable } from "../config/reload.js";
import type { Clock } from "../kernel/clock.js";
import { makeDirectory } from "../kernel/files.js";
import type { Class, Scope } from "../kernel/scope.js";
import type { Token } from "../kernel/token.js";
import type { Health } from "../observe/health.js";
import type { Logger } from "../observe/logger.js";
import type { Plugin, PluginContext } from "./plugin.js";

export interface PluginContextParts {
  readonly plugin: Plugin;
  readonly settings: unknown;
  readonly log: Logger;
  readonly scope: Scope;
  readonly registry: Registry;
  /** The server's, absolute. */
  readonly dataDir: string;
  readonly surfaces: Surfaces;
  readonly health: Health;
  readonly clock: Clock;
  readonly tenants: Tenants;
  /** Aborted once setup is over: later registrations would be neither checked nor served. */
  readonly sealed: AbortSignal;
  readonly diagnose: (name: string, run: Diagnosis) => void;
  readonly onReload: (reloadable: Reloadable) => void;
  readonly onStart: (run: () => unknown) => void;
  readonly onStop: (run: () => unknown) => void;
}

/** The kernel's side of the context that a plugin gets in `setup`. */
export function createPluginContext(parts: PluginContextParts): PluginContext<unknown> {
  const { plugin, scope, surfaces, health } = parts;
  const whileOpen =
    <A extends unknown[], R>(verb: string, run: (...args: A) => R) =>
    (...args: A): R => {
      if (!parts.sealed.aborted) return run(...args);
      throw new Error(`plugin '${plugin.name}' calls ${verb} after its setup has ended`);
    };
  const context: PluginContext<unknown> = {
    name: plugin.name,
    config: parts.settings,
    log: parts.log,
    metrics: parts.registry,
    dataDir() {
      const directory = join(parts.dataDir, plugin.name);
      makeDirectory(directory, 0o700);
      return directory;
    },
    bind: whileOpen("bind", <T>(key: Class<T> | Token<T>, implementation?: Class<T>) => {
      const built = implementation ?? key;
      if (typeof built !== "function")
        throw new TypeError("bind needs a class: a token alone does not say what to build");
      scope.bindClass(key, built);
      return context;
    }),
    bindValue: whileOpen("bindValue", (key, value) => {
      scope.bindValue(key, value);
      return context;
    }),
    resolve: (key) => scope.resolve(key),
    http: whileOpen("http", (surface, options) => surfaces.get(surface).router(plugin.name, options)),
    rpc: whileOpen("rpc", (surface) => surfaces.get(surface).rpcRouter(plugin.name)),
    webSocket: whileOpen("webSocket", (surface, paths, route) => {
      const sockets = new WebSockets(route, parts);
      parts.onStop(() => sockets.close());
      for (const path of paths) surfaces.get(surface).addUpgrade(plugin.name, path, sockets.accept);
    }),
    guard: whileOpen("guard", (surface, check) => surfaces.get(surface).addGuard(check)),
    observe: whileOpen("observe", (surface, observer) => surfaces.get(surface).addObserver(observer)),
    health: whileOpen("health", (name, check) => health.add(name, check)),
    diagnose: whileOpen("diagnose", parts.diagnose),
    onReload: whileOpen("onReload", (keys, apply) => parts.onReload({ keys, apply })),
    onStart: whileOpen("onStart", parts.onStart),
    onStop: parts.onStop,
  };
  return context;
}
