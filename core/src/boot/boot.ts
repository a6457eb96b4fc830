import { Shares } from "../bounds/tenants.js";
import "../http/messages/native-base64.js";
import { readFileSync } from "node:fs";
import { createSecureContext } from "node:tls";
import { resolve } from "node:path";
import type { DestinationStream } from "pino";
import { collectDefaultMetrics, Registry } from "prom-client";
import type { ConfigSource } from "../config/read.js";
import { type Reloadable, type Reloaded, reloadSettings } from "../config/reload.js";
import { RELOADED, type ServerConfig } from "./server-schema.js";
import type { Diagnosis } from "../observe/finding.js";
import { builtInServices, type Configuration, configure, foldersOfPlugins } from "./configure.js";
import { useHostNetwork, namesAdvice } from "./host-network.js";
import { ClientAddresses } from "../http/clients/client-address.js";
import { HttpListener, type ListenerServices } from "../http/listener.js";
import { unguardedListeners, Surfaces } from "../http/surfaces/surfaces.js";
import { explainEnd } from "../http/surfaces/permit.js";
import { exchangeLimit, PortConnections } from "../http/proxy/port-connections.js";
import { foreignPages } from "../http/clients/local-client.js";
import type { ServedRoute } from "../http/surfaces/surface.js";
import { KnownPeers } from "../http/peers/peers.js";
import type { Sandboxes } from "../sandbox/life/sandboxes.js";
import { Targeting } from "../http/targeting/targeting.js";
import { Cleanup, type CleanupFailure } from "../kernel/cleanup.js";
import { createSlot, type Token, tokenName } from "../kernel/token.js";
import { type Clock, systemClock } from "../kernel/clock.js";
import { BootError, type BootProblem, messageOf, SandboxError } from "../kernel/errors.js";
import { makeDirectory } from "../kernel/files.js";
import { runAs } from "../kernel/owner.js";
import { type Patience, abortAfter, within } from "../kernel/time.js";
import { Scope } from "../kernel/scope.js";
import { collectGreeting } from "../observe/greeting.js";
import { Health } from "../observe/health.js";
import { buildInfo, httpMetrics, metricProblems, type OwnedRegistry, mountOps } from "../observe/metrics.js";
import { createLogger, type Logger } from "../observe/logger.js";
import { serverGauges } from "../observe/server-gauges.js";
import { createPluginContext } from "../plugin/plugin-context.js";
import type { Plugin } from "../plugin/plugin.js";
import type { Backends } from "../sandbox/contract/backend.js";
import type { Templates } from "../sandbox/templates/templates.js";
import { createSandboxDomain } from "../sandbox/domain.js";
import { Ledger } from "../sandbox/ledger/ledger.js";
import type { RecordSource } from "../sandbox/model/tenant-records.js";

export interface BootOptions {
  readonly config: ConfigSource;
  /** Plugins passed as values, by their key in the configuration. */
  readonly plugins?: ReadonlyMap<string, Plugin>;
  readonly clock?: Clock;
  readonly log?: Logger;
  /** Takes the lines of the log in JSON in place of stdout. */
  readonly logTo?: DestinationStream | undefined;
}

export interface Server {
  readonly listeners: readonly HttpListener[];
  readonly log: Logger;
  readonly routes: readonly ServedRoute[];
  /** Lines of plugins for the person who started the server. */
  readonly greeting: readonly string[];
  /** A service of the kernel, or one that a plugin provides. @throws Error when there is none. */
  resolve<T>(token: Token<T>): T;
  readonly requests: number;
  /** Time limit of `stop` for running requests, in milliseconds. */
  readonly drainTimeoutMs: number;
  /** How long each clean-up step of `stop` may take. */
  readonly stopTimeoutMs: number;
  /**
   * Takes over what may change while the server runs: certificates, and settings that core and plugins name. Between two
   * requests, and each plugin all of its settings or none.
   * @param source the configuration as it is now.
   * @throws BootError with every problem of it, as at a start; then nothing has changed.
   */
  reload(source: ConfigSource): Promise<Reloaded>;
  /** Drains, then undoes everything; answers the failures. A second call waits for the first. */
  stop(): Promise<readonly CleanupFailure[]>;
}

/** Time between two looks at the delay of the event loop, which it includes. With ten they cost as much as all the rest of a server that does nothing. */
const LOOP_LOOK_MS = 50;

/**
 * Starts a server: configure, setup, start, listen.
 * @throws BootError with every problem of the configuration at once, or with the reason why a later phase failed.
 * Everything that was done has been undone then.
 */
export async function boot(options: BootOptions): Promise<Server> {
  const clock = options.clock ?? systemClock;
  const configuration = await configure(options.config, options.plugins);
  const log = options.log ?? createLogger(configuration.server.log.level, options.logTo);
  const assembly = { configuration, source: options.config, clock, log, cleanup: new Cleanup() };
  try {
    return await serve(await assemble(assembly), assembly);
  } catch (error) {
    throw await undo(assembly, error);
  }
}

export interface InspectOptions extends BootOptions {
  /** Result of `configure` for the same source and plugins. */
  readonly configuration: Configuration;
  readonly log: Logger;
}

export interface Inspected {
  readonly configuration: Configuration;
  readonly backends: Backends;
  readonly templates: Templates;
  /** Not opened. */
  readonly ledger: Ledger;
  readonly routes: readonly ServedRoute[];
  readonly problems: readonly BootProblem[];
  /** Diagnoses of the host by plugins, in the order in which the plugins were set up. */
  readonly diagnoses: readonly { readonly name: string; readonly run: Diagnosis }[];
}

/**
 * Sets a configuration up without starting it, passes it to `look`, and undoes it.
 * @returns what `look` resolves with.
 * @throws BootError when it cannot be set up, or what `look` throws.
 */
export async function inspect<T>(
  options: InspectOptions,
  look: (inspected: Inspected) => Promise<T>,
): Promise<T> {
  const { config: source, configuration, clock = systemClock, log } = options;
  const assembly = { configuration, source, clock, log, cleanup: new Cleanup() };
  let seen: T;
  try {
    const { domain, surfaces, problems, diagnoses } = await assemble(assembly);
    const { backends, ledger, templates } = domain;
    seen = await look({
      configuration,
      backends,
      templates,
      ledger,
      routes: surfaces.routes(),
      problems,
      diagnoses,
    });
  } catch (error) {
    throw await undo(assembly, error);
  }
  const failures = await assembly.cleanup.run(clock, configuration.server.stopTimeout);
  if (failures.length === 0) return seen;
  throw new BootError(
    failures.map(({ owner, message }) => ({ message: `clean-up of '${owner}': ${message}` })),
  );
}

/** Undoes what was done. @returns the error to throw. */
async function undo({ cleanup, clock, configuration, log }: Assembly, error: unknown): Promise<BootError> {
  for (const failure of await cleanup.run(clock, configuration.server.stopTimeout)) {
    log.error({ plugin: failure.owner, err: failure.error }, "clean-up after a failed start went wrong");
  }
  return error instanceof BootError
    ? error
    : new BootError([{ message: messageOf(error) }], { cause: error });
}

interface Assembly {
  readonly configuration: Configuration;
  readonly source: ConfigSource;
  readonly clock: Clock;
  readonly log: Logger;
  readonly cleanup: Cleanup;
}

type Assembled = Awaited<ReturnType<typeof assemble>>;

async function assemble({ configuration, source, clock, log, cleanup }: Assembly) {
  const { server: config, plugins } = configuration;
  const patience: Patience = (plugin, step, run) =>
    within(() => runAs(plugin, run), {
      clock,
      timeoutMs: config.startTimeout,
      keepAlive: true,
      onSlow: () => log.warn({ plugin, step }, "waiting for a plugin"),
    });
  await useHostNetwork(config.outgoing, { cleanup, log });
  const coreMetrics = new Registry();
  buildInfo(coreMetrics);
  collectDefaultMetrics({ register: coreMetrics, eventLoopMonitoringPrecision: LOOP_LOOK_MS });
  // Gauges with names of counters, which promtool refuses; the sums of those without `_total`.
  for (const what of ["handles", "requests", "resources"])
    coreMetrics.removeSingleMetric(`nodejs_active_${what}_total`);
  cleanup.push("core", () => coreMetrics.clear());
  const dataDir = resolve(config.dataDir);
  const domain = createSandboxDomain({
    config: config.sandboxes,
    dataDir,
    clock,
    log: log.child({ plugin: "core" }),
    metrics: coreMetrics,
    patience,
    ledger: () => services.get(Ledger) as Ledger | undefined,
  });
  const { sandboxes } = domain;
  const peers = new KnownPeers();
  const endOf: Sandboxes["endOf"] = async (id) => (await sandboxes.endOf(id)) ?? peers.endOf(id);
  const surfaces = new Surfaces({
    log,
    messageLimitBytes: config.http.messageLimit,
    bodyRoom: new Shares(config.http.maxHeldBodies, domain.tenants),
    explain: (error, request) => explainEnd(error, request, endOf),
    peerOf: (error, request) => peers.ofError(error, request),
  });
  const targeting = new Targeting({ domain: config.domain, sandboxes, endOf, surfaces, peers });
  const certificates = readCertificates(config, source);
  const listeners = createListeners(config, certificates, {
    surfaces,
    targeting,
    clientAddresses: new ClientAddresses(config.http.trustedProxies),
    foreignPages: foreignPages({ ...config.http, domain: config.domain }),
    peers,
    connections: new PortConnections({
      idleTimeoutMs: config.http.proxyIdleTimeout,
      maxIdle: config.http.proxyIdleConnections,
      headLimit: config.http.proxyHeadLimit,
      metrics: coreMetrics,
    }),
    exchanges: exchangeLimit(config.http.proxyMaxExchanges),
    metrics: httpMetrics(coreMetrics),
    log,
  });
  const health = new Health();
  health.add("ledger", () => domain.ledger.check());
  serverGauges({
    registry: coreMetrics,
    dataDir,
    folders: new Map([["dataDir", dataDir], ...foldersOfPlugins(configuration)]),
    health,
    certificates: () =>
      listeners.flatMap(({ name, certificate }) => (certificate ? [[name, certificate]] : [])),
  });
  const greeting = collectGreeting();
  greeting.add(() => {
    const { backends, templates } = domain;
    if (backends.all().length === 0) return [];
    const usual = backends.default().name;
    const used = new Set([usual, ...templates.all().map(({ backend = usual }) => backend)]);
    return backends
      .all()
      .filter(({ name }) => used.has(name))
      .map(
        ({ name, isolated }) =>
          `  ${name}: ${isolated ? "isolated sandboxes" : "sandboxes WITHOUT isolation"}`,
      );
  });
  let advice: readonly string[] = [];
  // Not waited for.
  void namesAdvice(config.domain).then((lines) => (advice = lines));
  greeting.add(() => advice);
  const services = builtInServices({
    ...domain,
    clock,
    tenantRecords: createSlot<RecordSource>("another plugin keeps the records of several servers"),
    targets: targeting,
    listeners: {
      all: () => listeners,
      cut: (reason) => listeners.forEach((listener) => listener.cut(reason)),
    },
    peers,
    greeting,
  });

  // setup: in dependency order, so that required services are already provided.
  const problems: BootProblem[] = [];
  const starts: { readonly owner: string; readonly run: () => unknown }[] = [];
  const diagnoses: { readonly name: string; readonly run: Diagnosis }[] = [];
  const pluginMetrics: OwnedRegistry[] = [];
  const reloadables = new Map<Plugin, Reloadable[]>();
  const sealed = new AbortController();
  for (const { key, plugin, settings } of plugins) {
    const scope = new Scope(plugin.name);
    const wanted = Object.entries({ ...plugin.requires, ...plugin.uses });
    for (const token of new Set(wanted.map(([, each]) => each)))
      if (services.has(token)) scope.bindValue(token, services.get(token));
    const registry = new Registry();
    pluginMetrics.push({ plugin: plugin.name, registry });
    cleanup.push(plugin.name, () => registry.clear());
    const context = createPluginContext({
      plugin,
      settings,
      log: log.child({ plugin: plugin.name }),
      scope,
      registry,
      dataDir,
      surfaces,
      health,
      clock,
      tenants: domain.tenants,
      sealed: sealed.signal,
      diagnose: (name, run) => diagnoses.push({ name, run }),
      onReload: (reloadable) => {
        reloadables.set(plugin, [...(reloadables.get(plugin) ?? []), reloadable]);
      },
      onStart: (run) => starts.push({ owner: plugin.name, run }),
      onStop: (run) => cleanup.push(plugin.name, run),
    });
    const found = Object.fromEntries(wanted.map(([name, token]) => [name, services.get(token)]));
    try {
      await patience(plugin.name, "its setup", () => plugin.setup(context, found));
    } catch (error) {
      // Only the author of a plugin of his own is helped by it.
      const place = key.includes("/") && !(error instanceof SandboxError) ? placeOf(error) : "";
      const message = `plugin '${plugin.name}' could not be set up: ${messageOf(error)}${place}`;
      throw new BootError([{ message, at: source.at(["plugins", key]) }], { cause: error });
    }
    const incomplete = [
      ...scope.unfilled(),
      ...plugin.provides
        .filter((token) => !scope.has(token))
        .map((token) => `provides '${tokenName(token)}' but did not bind it`),
    ].map((message) => ({ message: `plugin '${plugin.name}': ${message}`, at: source.at(["plugins", key]) }));
    problems.push(...incomplete);
    if (incomplete.length > 0) continue;
    for (const token of plugin.provides) services.set(token, scope.resolve(token));
  }
  const registries = [coreMetrics, ...pluginMetrics.map(({ registry }) => registry)];
  mountOps(surfaces.get("ops").router("core"), registries, health);
  sealed.abort();
  surfaces.freeze();

  problems.push(
    ...surfaces.collisions(),
    ...surfaces.unreachable(Object.keys(config.listeners)),
    ...surfaces.unserved(Object.keys(config.listeners)).map((name) => ({
      message: `listeners.${name}: no plugin has a surface '${name}'`,
      at: source.at(["listeners", name]),
    })),
    ...metricProblems(pluginMetrics, coreMetrics),
    ...unguardedListeners(listeners, surfaces, (name) => source.at(["listeners", name])),
  );
  return {
    patience,
    domain,
    surfaces,
    listeners,
    health,
    greeting,
    services,
    problems,
    starts,
    diagnoses,
    reloadables,
  };
}

async function serve(
  assembled: Assembled,
  { configuration, clock, log, cleanup }: Assembly,
): Promise<Server> {
  const { server: config } = configuration;
  const { patience, domain, surfaces, listeners, health, greeting, services, problems, starts } = assembled;
  const { reloadables } = assembled;

  // start: the backends, then the plugins.
  if (problems.length > 0) throw new BootError(problems);
  await requireFreeAddresses(listeners);
  makeDataDirectory(resolve(config.dataDir));
  cleanup.push("core", () => domain.stop());
  await domain.start();
  for (const { owner, run } of starts) {
    try {
      await patience(owner, "its start", run);
    } catch (error) {
      throw new BootError([{ message: `plugin '${owner}' could not start: ${messageOf(error)}` }], {
        cause: error,
      });
    }
  }

  // listen: last, so that no request meets a half-started plugin.
  surfaces.seal();
  cleanup.push("core", () => {
    domain.refuseNew();
    return drain(listeners, clock, config.http.drainTimeout);
  });
  for (const listener of listeners) await listener.open();
  domain.fillPools();
  domain.tellEvents();
  return {
    listeners,
    log,
    routes: surfaces.routes(),
    greeting: greeting.lines(),
    resolve<T>(token: Token<T>): T {
      if (!services.has(token)) throw new Error(`no enabled plugin provides '${tokenName(token)}'`);
      return services.get(token) as T;
    },
    get requests() {
      return listeners.reduce((count, listener) => count + listener.requests, 0);
    },
    drainTimeoutMs: config.http.drainTimeout,
    stopTimeoutMs: config.stopTimeout + config.http.drainTimeout,
    async reload(source) {
      const running = new Map(configuration.plugins.map(({ key, plugin }) => [key, plugin]));
      const next = await configure(source, running);
      return takeOver({
        configuration,
        next,
        reloadables,
        renew: () => renewCertificates(config, source, listeners),
      });
    },
    stop() {
      health.stopping();
      return cleanup.run(clock, config.stopTimeout + config.http.drainTimeout);
    },
  };
}

interface Reload {
  readonly configuration: Configuration;
  readonly next: Configuration;
  readonly reloadables: ReadonlyMap<Plugin, readonly Reloadable[]>;
  /** Reads certificates again; answers whether there are any. @throws Error when one cannot be used. */
  readonly renew: () => boolean;
}

/** Changes the settings of core and of each plugin, without a pause in which a request could see half of them. */
function takeOver({ configuration, next, reloadables, renew }: Reload): Reloaded {
  const changed: string[] = [];
  const restart: string[] = [];
  const failed: Reloaded["failed"][number][] = [];
  const add = (outcome: Reloaded): void => {
    changed.push(...outcome.changed);
    restart.push(...outcome.restart);
    failed.push(...outcome.failed);
  };
  // Plugins have their parsed settings elsewhere.
  const [current, wanted] = [configuration.server, next.server].map((server) => ({ ...server, plugins: {} }));
  add(reloadSettings({ owner: "core", at: [], current, next: wanted, reloadables: [{ keys: RELOADED }] }));
  try {
    if (renew()) changed.push("certificates");
  } catch (error) {
    failed.push({ plugin: "core", error });
  }
  const others = new Map(next.plugins.map(({ key, settings }) => [key, settings]));
  for (const { key, plugin, settings } of configuration.plugins) {
    const at = ["plugins", key];
    if (!others.has(key)) restart.push(at.join("."));
    else
      add(
        reloadSettings({
          owner: plugin.name,
          at,
          current: settings,
          next: others.get(key),
          reloadables: reloadables.get(plugin) ?? [],
        }),
      );
    others.delete(key);
  }
  restart.push(...[...others.keys()].map((key) => `plugins.${key}`));
  return { changed, restart, failed };
}

/** As PEM. */
interface Certificate {
  readonly cert: string;
  readonly key: string;
}

/** PEM files by listener. @throws BootError for each that cannot be read. */
function readCertificates(config: ServerConfig, source: ConfigSource): ReadonlyMap<string, Certificate> {
  const certificates = new Map<string, Certificate>();
  const problems: BootProblem[] = [];
  for (const [name, { tls }] of Object.entries(config.listeners)) {
    if (tls === undefined) continue;
    try {
      certificates.set(name, { cert: readFileSync(tls.cert, "utf8"), key: readFileSync(tls.key, "utf8") });
    } catch (error) {
      const message = `listeners.${name}.tls cannot be read: ${messageOf(error)}`;
      problems.push({ message, at: source.at(["listeners", name, "tls"]) });
    }
  }
  if (problems.length > 0) throw new BootError(problems);
  return certificates;
}

/** Reads the certificates of all listeners again: all are taken over, or none. @throws Error when one cannot be used. */
function renewCertificates(
  config: ServerConfig,
  source: ConfigSource,
  listeners: readonly HttpListener[],
): boolean {
  const certificates = readCertificates(config, source);
  for (const tls of certificates.values()) createSecureContext(tls);
  for (const listener of listeners) {
    const tls = certificates.get(listener.name);
    if (tls !== undefined) listener.renew(tls);
  }
  return certificates.size > 0;
}

function createListeners(
  config: ServerConfig,
  certificates: ReadonlyMap<string, Certificate>,
  services: ListenerServices,
): readonly HttpListener[] {
  return Object.entries(config.listeners).map(
    ([name, listener]) =>
      new HttpListener({ ...listener, name, tls: certificates.get(name), limits: config.http }, services),
  );
}

/** @throws BootError that names the directory when it cannot be made. */
function makeDataDirectory(dataDir: string): void {
  try {
    makeDirectory(dataDir, 0o700);
  } catch (error) {
    throw new BootError([{ message: `dataDir ${dataDir} cannot be made: ${messageOf(error)}` }], {
      cause: error,
    });
  }
}

/** Checks all listeners at once, before anything is started. @throws BootError for each address that is taken. */
async function requireFreeAddresses(listeners: readonly HttpListener[]): Promise<void> {
  const tried = await Promise.allSettled(listeners.map((listener) => listener.tryAddress()));
  const problems = tried.flatMap((one) =>
    one.status === "rejected" ? [{ message: messageOf(one.reason) }] : [],
  );
  if (problems.length > 0) throw new BootError(problems);
}

/** Waits for running requests, and cuts those that remain when the time is up. */
async function drain(listeners: readonly HttpListener[], clock: Clock, timeoutMs: number): Promise<void> {
  const giveUp = new AbortController();
  using _limit = abortAfter(giveUp, { clock, timeoutMs });
  await Promise.all(listeners.map((listener) => listener.close(giveUp.signal)));
}

/** Where an error was thrown, as a suffix of its message. */
function placeOf(error: unknown): string {
  const [, place] =
    /\n\s+at (?:.*\()?((?:file:\/\/)?\/[^()\n]+:\d+:\d+)/.exec((error as Error).stack ?? "") ?? [];
  return place === undefined ? "" : ` (${place})`;
}
