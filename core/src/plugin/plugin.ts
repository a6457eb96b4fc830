import type { Command } from "@commander-js/extra-typings";
import type { ConnectRouter } from "@connectrpc/connect";
import type KoaRouter from "@koa/router";
import type { Registry } from "prom-client";
import { z } from "zod";
import type { Diagnosis } from "../observe/finding.js";
import type { RouterOptions } from "../http/surfaces/surface.js";
import type { Guard, Observer } from "../http/surfaces/surface-request.js";
import type { WebSocketRoute } from "../http/surfaces/web-sockets.js";
import type { Clock } from "../kernel/clock.js";
import type { Class } from "../kernel/scope.js";
import type { Token } from "../kernel/token.js";
import type { HealthCheck } from "../observe/health.js";
import type { DeclaredReason } from "../kernel/reasons.js";
import type { Logger } from "../observe/logger.js";
import type { Backends } from "../sandbox/contract/backend.js";

/** Routes of a plugin. */
export type Router = KoaRouter;

/** The services that a plugin required, under the names it gave them. */
export type Resolved<R> = { readonly [K in keyof R]: R[K] extends Token<infer T> ? T : never };

/** The services that a plugin uses where another one provides them. */
export type ResolvedIfProvided<U> = { readonly [K in keyof U]: Resolved<U>[K] | undefined };

type Names<Settings> = keyof Settings & string;

/** Names of settings, and of settings below them. */
export type ReloadableKey<Config> = Names<Config> | `${Names<Config>}.${string}`;

/** What `setup` of a plugin is given. */
export interface PluginContext<Config> {
  readonly name: string;
  readonly config: Config;
  readonly log: Logger;
  /** This plugin's own registry; every metric in it is named `coppice_<name>_…`. */
  readonly metrics: Registry;
  /**
   * A directory for this plugin's data: `<server's dataDir>/<name>`, absolute, made for this user alone at the first
   * call. Write to it from `onStart` on: by then no other server uses this `dataDir`.
   * @throws Error of the file system when it cannot be made.
   */
  dataDir(): string;
  /** Binds a class, once per server, under itself or under a token. */
  bind<T>(key: Class<T> | Token<T>, implementation?: Class<T>): this;
  bindValue<T>(key: Token<T>, value: T): this;
  /** @throws Error naming the token when this plugin neither bound nor required it. */
  resolve<T>(key: Class<T> | Token<T>): T;
  /**
   * A router for this plugin on a surface: `api`, `envd`, `code`, `ops`, or another one that the configuration names.
   */
  http(surface: string, options?: RouterOptions): Router;
  /** Connect's own registration, at the exact paths of the methods. */
  rpc(surface: string): Pick<ConnectRouter, "service" | "rpc">;
  /**
   * Serves WebSockets at paths of one surface, which share their bounds; those that are open are cut when the plugin stops.
   * Segments in `:name` match anything.
   */
  webSocket(surface: string, paths: readonly string[], route: WebSocketRoute): void;
  /** Runs before every request of a surface, after targeting and before routing. */
  guard(surface: string, check: Guard): void;
  /** Receives every answer of a surface, refusals too. */
  observe(surface: string, observer: Observer): void;
  /**
   * Part of `/readyz`: rejects with the reason while this plugin cannot serve. Details that it resolves with are shown
   * there as well.
   */
  health(name: string, check: HealthCheck): void;
  /**
   * Part of `coppice doctor`: checks the host for this plugin's requirements. Runs without a start, after the `check`
   * of every backend, and at no other time.
   */
  diagnose(name: string, run: Diagnosis): void;
  /**
   * Names settings that may change while the server runs: `maxNames`, or `webhooks.maxWebhooks` for one below. A reload
   * (SIGHUP) changes them in `config`, between two requests: read them from there where they are used. All others need
   * a restart.
   * @param apply called when some of them have changed, for what is made of them. When it throws, all settings of this
   * plugin stay as they were, and it is called again with those.
   */
  onReload(keys: readonly ReloadableKey<Config>[], apply?: () => void): void;
  onStart(run: () => unknown): void;
  /** Registers an undo step: call it right after the step that it undoes. Last in, first out. */
  onStop(run: () => unknown): void;
}

/** Context of an action of the command line. No server runs in its process; one may run in another. */
export interface VerbContext<Config> {
  readonly config: Config;
  /** Sets the exit code; 0 without it. */
  readonly exit: (code: number) => void;
  readonly clock: Clock;
  /** As in the plugin's context; a server may be using it at this moment. */
  readonly dataDir: () => string;
  /**
   * Passes the backends of the configuration to `use`, with its plugins set up and not started. No server can start on
   * its data directory meanwhile.
   * @throws BootError where one runs, or the configuration cannot be set up; or what `use` throws.
   */
  readonly whileStopped: <T>(use: (backends: Backends) => Promise<T>) => Promise<T>;
  /**
   * Client of a running server, by default the one of the configuration. Options of the command line win over the
   * environment variables COPPICE_URL, E2B_API_URL, COPPICE_TOKEN and E2B_API_KEY.
   */
  readonly server: (said: { readonly url?: string | undefined }) => ServerClient;
  /** Prints a line; a terminal shows its control characters in readable form. */
  readonly print: (line: string) => void;
  /** Rows below a heading, in columns on a terminal; elsewhere tab-separated lines without the heading. */
  readonly printTable: (heading: readonly string[], rows: readonly (readonly string[])[]) => void;
}

/** A request to the control plane of a server. */
export interface ServerRequest {
  readonly method?: "GET" | "POST" | "DELETE";
  readonly path: string;
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

/** Client of the control plane of a running server. */
export interface ServerClient {
  /** @throws ApiFailure unless the answer is a success, or the signal's reason: the verb ends with 1 and the message. */
  request(request: ServerRequest): Promise<Response>;
}

/**
 * One thing that `coppice <verb> <action> <config.yaml> [options]` does: declares its description, arguments and options
 * on a command of `commander`, each option with an environment variable, and its action.
 *
 * The action may throw a SandboxError with a message to print: exit code 64 for invalid_argument, else 1.
 */
export type VerbAction<Config> = (command: Command, context: VerbContext<Config>) => unknown;

/** Actions by name, by verb. */
export type Verbs<Config> = Readonly<Record<string, Readonly<Record<string, VerbAction<Config>>>>>;

// `any`: a record of tokens of unlike services has no narrower common type that keeps inference.
// oxlint-disable-next-line typescript/no-explicit-any
type TokenRecord = Record<string, Token<any>>;

/** A plugin as the kernel sees it; made by `definePlugin`. */
export interface Plugin {
  readonly name: string;
  readonly config: z.ZodType;
  readonly requires: TokenRecord;
  readonly uses: TokenRecord;
  readonly provides: readonly symbol[];
  readonly verbs: Verbs<unknown>;
  /** Reasons of its refusals, by name. */
  readonly reasons: Readonly<Record<string, DeclaredReason>>;
  setup(plugin: PluginContext<unknown>, services: Record<string, unknown>): void | Promise<void>;
}

/** Property that marks a plugin. */
const IS_PLUGIN = Symbol("plugin");

export interface PluginDefinition<
  C extends z.ZodType,
  R extends TokenRecord,
  U extends TokenRecord = TokenRecord,
> {
  /** kebab-case: its config key, its log field, its metric prefix `coppice_<name>_`. */
  readonly name: string;
  /** Settings as zod: the source of defaults, messages and docs. Unknown keys are refused: use `z.strictObject`. */
  readonly config?: C;
  /** Required services, checked before anything is set up. */
  readonly requires?: R;
  /** Services that it can do without: `setup` gets undefined for one that no enabled plugin provides. */
  readonly uses?: U;
  /** Tokens that are bound when `setup` returns. */
  readonly provides?: readonly symbol[];
  /** Verbs that it adds to the command line: `coppice <verb> <action> <config.yaml>`. */
  readonly verbs?: Verbs<z.infer<C>>;
  /** Reasons of its refusals (`declareReasons`). A name that another plugin or core has is a problem of the configuration. */
  readonly reasons?: Readonly<Record<string, DeclaredReason>>;
  setup(
    plugin: PluginContext<z.infer<C>>,
    services: Resolved<R> & ResolvedIfProvided<U>,
  ): void | Promise<void>;
}

const NO_CONFIG = z.strictObject({});
const KEBAB_CASE = /^[a-z][a-z0-9]*(-[a-z0-9]+)*$/;

/**
 * Makes a plugin: a value that requires and provides tokens and registers routes.
 *
 * A package is a plugin package when its default export is the returned value.
 * @throws TypeError that names the plugin when the definition is invalid.
 */
export function definePlugin<
  C extends z.ZodType = typeof NO_CONFIG,
  const R extends TokenRecord = {},
  const U extends TokenRecord = {},
>(definition: PluginDefinition<C, R, U>): Plugin {
  if (!KEBAB_CASE.test(definition.name)) {
    throw new TypeError(`a plugin's name is kebab-case, not '${definition.name}'`);
  }
  checkDefinition(definition);
  const plugin = {
    [IS_PLUGIN]: true,
    name: definition.name,
    config: definition.config ?? NO_CONFIG,
    requires: definition.requires ?? {},
    uses: definition.uses ?? {},
    provides: definition.provides ?? [],
    verbs: (definition.verbs ?? {}) as Verbs<unknown>,
    reasons: definition.reasons ?? {},
    setup: (context: PluginContext<unknown>, services: Record<string, unknown>) =>
      definition.setup(context as PluginContext<z.infer<C>>, services as Resolved<R> & ResolvedIfProvided<U>),
  };
  return plugin;
}

/** Refuses mistakes that only plain JavaScript, or an import of a missing name, can make, with the plugin's name. */
function checkDefinition({
  name,
  config,
  requires,
  uses,
  provides,
  ...rest
}: PluginDefinition<z.ZodType, TokenRecord>): void {
  const refuse = (text: string): never => {
    throw new TypeError(`plugin '${name}': ${text}`);
  };
  if (typeof rest.setup !== "function") refuse("setup is not a function");
  // Duck-typed: a schema may come from another installed copy of zod.
  if (config !== undefined && typeof (config as Partial<z.ZodType> | null)?.safeParse !== "function")
    refuse("config is not a zod schema");
  for (const [field, tokens] of Object.entries({ requires, uses }))
    for (const [key, token] of Object.entries(tokens ?? {}))
      if (typeof token !== "symbol") refuse(`${field}.${key} is ${String(token)}, not a token`);
  for (const token of provides ?? [])
    if (typeof token !== "symbol") refuse(`provides has ${String(token)}, which is not a token`);
}

export function isPlugin(value: unknown): value is Plugin {
  return typeof value === "object" && value !== null && IS_PLUGIN in value;
}
