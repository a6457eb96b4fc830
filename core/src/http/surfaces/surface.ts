import type { IncomingMessage, ServerResponse } from "node:http";
import Router from "@koa/router";
import { type ConnectRouter, createConnectRouter, createContextValues } from "@connectrpc/connect";
import { compressionGzip } from "@connectrpc/connect-node";
import type { UniversalHandler } from "@connectrpc/connect/protocol";
import Koa from "koa";
import { type BootProblem, SandboxError } from "../../kernel/errors.js";
import { currentOwner, runAs } from "../../kernel/owner.js";
import type { Logger } from "../../observe/logger.js";
import {
  type Answered,
  type Guard,
  type Observer,
  type UpgradeHandler,
  type Peer,
  type Scope,
  notedSandbox,
  requestIn,
  requestKey,
  type SurfaceRequest,
  withPrincipal,
} from "./surface-request.js";
import { EdgeRefusal } from "../messages/edge-refusal.js";
import { hasBody } from "../messages/heads.js";
import { bodyChunks, bodyOf } from "../messages/json-body.js";
import { countBody } from "../../bounds/held-bodies.js";
import type { Shares } from "../../bounds/tenants.js";
import { tenantOf, permitByMethod, permittedScopes, requireScope, scopeOfMethod } from "./permit.js";
import { HttpError, withBody, withReason } from "../messages/http-error.js";
import { responseKey } from "../messages/message-stream.js";
import { bounded, boundedBody, messageText } from "./bounded-values.js";
import { headersOf, noteStreams, readStreamCall, type StreamRpc } from "./stream-rpc.js";
import { overlaps } from "./route-overlap.js";
import { sendAnswer } from "../messages/send-answer.js";
import { blameSender, mayBeUnparsable } from "../messages/unparsable-message.js";
import { errorInterceptor, toHttpError, writeHttpError } from "../messages/wire-errors.js";

export interface SurfaceOptions {
  readonly log: Logger;
  readonly messageLimitBytes: number;
  /** Bytes of bodies and messages that are read whole, which tenants share. */
  readonly bodyRoom: Shares;
  /** Returns the error to answer instead of the one that a route threw. Never rejects. */
  readonly explain: (error: unknown, request: SurfaceRequest) => Promise<unknown>;
  /** The server that a request is for, by the error that it ended with here. */
  readonly peerOf: (error: unknown, request: SurfaceRequest) => Promise<Peer | undefined>;
}

const MAX_TIMER_MS = 2 ** 31 - 1;

interface Upgrade {
  readonly plugin: string;
  readonly path: string;
  readonly accept: UpgradeHandler;
}

interface Owned<T> {
  readonly plugin: string;
  readonly value: T;
}

/** Makes the body of an error for routes of another contract. */
export type ErrorBody = (error: HttpError, request: SurfaceRequest) => Readonly<Record<string, unknown>>;

export interface RouterOptions {
  /** `e2b` for routes of E2B's interface: the bodies of their errors have no `reason`, as E2B's have none. */
  readonly errors?: "e2b" | ErrorBody;
  /**
   * Path of which the contract of `errors` has everything: also refused WebSockets and paths without a route below it have
   * that body.
   */
  readonly below?: string;
  /** Authorizes requests of its routes in place of the surface's guards: for URLs that have a secret of their own. */
  readonly guard?: Guard;
}

/** Connect passes them on to its serialization, whose options these are. */
const JSON_OPTIONS = { ignoreUnknownFields: true, textDecoder: { decode: messageText } };

interface Rpc extends Owned<UniversalHandler> {
  readonly stream: StreamRpc | undefined;
}

interface Served {
  readonly request: SurfaceRequest;
  route: () => RoutePattern;
}

/** The pattern of the route that answered a request; never the raw path, which is unbounded. */
export type RoutePattern = string;

/** A route of the assembled server. */
export interface ServedRoute {
  readonly surface: string;
  readonly plugin: string;
  readonly kind: "http" | "rpc" | "upgrade";
  /** `GET` of an upgrade, `POST` of an RPC; each GET implies HEAD. */
  readonly method: string;
  /** With `:name` for a segment that may be anything. */
  readonly path: string;
  /** A principal needs each of them. */
  readonly scopes: readonly Scope[];
}

const RPC_SCOPE = "exec";
const UPGRADE_SCOPE = "attach";

/** A named set of routes, RPCs, upgrades and guards that plugins fill and listeners serve. */
export class Surface {
  readonly name: string;
  readonly #options: SurfaceOptions;
  readonly #routers: (Owned<Router> & RouterOptions)[] = [];
  readonly #rpcRouters: (Owned<ConnectRouter> & { readonly streams: ReadonlyMap<string, StreamRpc> })[] = [];
  readonly #upgrades: Upgrade[] = [];
  readonly #guards: Owned<Guard>[] = [];
  readonly #observers: Owned<Observer>[] = [];
  /** Koa makes its context from the message alone: this is how a request gets into `ctx.state`. */
  readonly #served = new WeakMap<IncomingMessage, Served>();
  #koa: ReturnType<Koa["callback"]> | undefined;
  #rpcs: ReadonlyMap<string, Rpc> = new Map();

  constructor(name: string, options: SurfaceOptions) {
    this.name = name;
    this.#options = options;
  }

  get isServed(): boolean {
    return this.#routers.length + this.#rpcRouters.length + this.#upgrades.length > 0;
  }

  get isGuarded(): boolean {
    return this.#guards.length > 0;
  }

  get plugins(): readonly string[] {
    const owned = [...this.#routers, ...this.#rpcRouters, ...this.#upgrades];
    return [...new Set(owned.map(({ plugin }) => plugin))];
  }

  router(plugin: string, options: RouterOptions = {}): Router {
    const router = new Router();
    this.#routers.push({ plugin, value: router, ...options });
    return router;
  }

  rpcRouter(plugin: string): ConnectRouter {
    const router = createConnectRouter({
      grpc: false,
      grpcWeb: false,
      acceptCompression: [bounded(compressionGzip)],
      // Unknown fields by the million take long to keep.
      binaryOptions: { readUnknownFields: false },
      // The SDKs offer gzip on everything; compressing a live stream would hold its messages back.
      compressMinBytes: Number.MAX_SAFE_INTEGER,
      readMaxBytes: this.#options.messageLimitBytes,
      jsonOptions: JSON_OPTIONS,
      interceptors: [errorInterceptor((values) => requestIn(values).log)],
    });
    this.#rpcRouters.push({ plugin, value: router, streams: noteStreams(router) });
    return router;
  }

  addUpgrade(plugin: string, path: string, accept: UpgradeHandler): void {
    this.#upgrades.push({ plugin, path, accept });
  }

  addGuard(guard: Guard): void {
    this.#guards.push({ plugin: currentOwner(), value: guard });
  }

  addObserver(observer: Observer): void {
    this.#observers.push({ plugin: currentOwner(), value: observer });
  }

  routes(): readonly ServedRoute[] {
    const { name: surface } = this;
    const http = this.#routers.flatMap(({ plugin, value }) =>
      value.stack.flatMap((layer) =>
        // A layer without methods is middleware.
        layer.methods
          .filter((method) => method !== "HEAD")
          .map((method) => {
            const declared = permittedScopes(layer.stack);
            const scopes = declared.length > 0 ? declared : [scopeOfMethod(method)];
            return { surface, plugin, kind: "http", method, path: String(layer.path), scopes } as const;
          }),
      ),
    );
    const rpc = this.#rpcRouters.flatMap(({ plugin, value }) =>
      value.handlers.map(
        ({ requestPath: path }) =>
          ({ surface, plugin, kind: "rpc", method: "POST", path, scopes: [RPC_SCOPE] }) as const,
      ),
    );
    const upgrade = this.#upgrades.map(
      ({ plugin, path }) =>
        ({ surface, plugin, kind: "upgrade", method: "GET", path, scopes: [UPGRADE_SCOPE] }) as const,
    );
    return [...http, ...rpc, ...upgrade];
  }

  /** Every pair of plugins that claim the same request, and every path that no request can have. */
  collisions(): readonly BootProblem[] {
    const problems: BootProblem[] = [];
    const routes = this.routes();
    for (const [index, route] of routes.entries()) {
      const { plugin, path } = route;
      const verb = verbOf(route);
      const place = `on surface '${this.name}'`;
      if (!/^[/({*]/.test(path)) {
        problems.push({
          message: `plugin '${plugin}' serves ${verb} ${path} ${place}: a path begins with /`,
        });
      }
      for (const other of routes.slice(0, index)) {
        if (verbOf(other) !== verb) continue;
        if (other.path.replace(PARAMETER, ":") === path.replace(PARAMETER, ":")) {
          problems.push({
            message: `plugins '${other.plugin}' and '${plugin}' both serve ${verb} ${path} ${place}`,
          });
        } else if (other.plugin !== plugin && overlaps(other.path, path)) {
          // Within a plugin its author ordered them; between two the configuration's order would decide.
          problems.push({
            message: `plugins '${other.plugin}' and '${plugin}' both serve some requests ${place}: ${verb} ${other.path} and ${verb} ${path}`,
          });
        }
      }
    }
    return problems;
  }

  /** From now on registering throws: later routes would be unchecked or unserved. */
  freeze(): void {
    for (const { plugin, value } of [...this.#routers, ...this.#rpcRouters]) {
      const refuse = (): never => {
        throw new Error(`plugin '${plugin}' registers a route after its setup has ended`);
      };
      const verbs = "stack" in value ? ["register", "use"] : ["service", "rpc"];
      for (const verb of verbs) Object.defineProperty(value, verb, { value: refuse });
    }
  }

  /** Freezes what was registered into handlers. Call once, before the first request. */
  seal(): void {
    this.#rpcs = new Map(
      this.#rpcRouters.flatMap(({ plugin, value, streams }) =>
        value.handlers.map(
          (handler) =>
            [
              handler.requestPath,
              { plugin, value: handler, stream: streams.get(handler.requestPath) },
            ] as const,
        ),
      ),
    );
    const koa = new Koa();
    // Errors that reach koa's own handler were already answered below.
    koa.silent = true;
    const surface = this.name;
    koa.use(async (ctx, next) => {
      const served = this.#served.get(ctx.req);
      if (served === undefined) throw new Error("a request reached koa without a surface");
      ctx.state["request"] = served.request;
      served.route = () => matchedRoute(ctx);
      let refusal: HttpError | undefined;
      try {
        await next();
        // Koa's own 404 is a text; with an empty 404 the E2B SDKs miss "not found".
        if (ctx.status === 404 && ctx.body === undefined && ctx.respond !== false) {
          throw new SandboxError(
            "route_not_found",
            `no route for ${ctx.method} ${ctx.path} on surface '${surface}'`,
          );
        }
      } catch (error) {
        const { request } = served;
        const left = await this.#passOn(error, request, { message: ctx.req, response: ctx.res });
        if (left === undefined) ctx.respond = false;
        else refusal = this.answerTo(await this.#options.explain(left, request), request);
      }
      this.#tell(served.request, { status: refusal?.status ?? ctx.status, route: served.route() });
      if (refusal === undefined) return;
      ctx.respond = false;
      writeHttpError(ctx.res, refusal);
    });
    const byPath = this.#routerByPath();
    for (const { plugin, value } of this.#routers) {
      for (const { methods, stack } of value.stack) {
        if (methods.length > 0 && permittedScopes(stack).length === 0) stack.unshift(permitByMethod);
        stack.unshift((_, next) => runAs(plugin, next));
      }
      const routes = value.routes() as Koa.Middleware;
      koa.use((ctx, next) => ((byPath.get(ctx.path) ?? value) === value ? routes(ctx, next) : next()));
    }
    koa.use((ctx) => {
      const allowed = this.#methodsAt(ctx.path);
      if (allowed.length === 0) {
        if (ctx.method !== "GET" || !this.#upgrades.some(({ path }) => matches(path, ctx.path))) return;
        // A proxy in front of the server may have removed the headers.
        ctx.set({ connection: "upgrade", upgrade: "websocket" });
        throw new SandboxError(
          "upgrade_required",
          `${ctx.path} is a WebSocket: a proxy has to pass the upgrade on`,
        );
      }
      ctx.set("allow", allowed.join(", "));
      throw new SandboxError("method_not_allowed", `${ctx.method} is not served at ${ctx.path}`);
    });
    this.#koa = koa.callback();
  }

  /** Runs the guards. @returns the request with its principal, where a guard named one. */
  async authorize(request: SurfaceRequest): Promise<SurfaceRequest> {
    let asked = request;
    const { url, method } = request;
    const own = this.#routers.find(
      ({ value, guard }) => guard !== undefined && value.match(url.pathname, method).route,
    );
    const guards = own?.guard === undefined ? this.#guards : [{ plugin: own.plugin, value: own.guard }];
    try {
      for (const { plugin, value: guard } of guards) {
        const principal = await runAs(plugin, () => guard(asked));
        if (principal !== undefined) asked = withPrincipal(asked, principal);
      }
      return asked;
    } catch (error) {
      throw this.#refuse(asked, error, "none");
    }
  }

  /** Serves an authorized request; a stream may go on after that. */
  async serve(request: SurfaceRequest, message: IncomingMessage, response: ServerResponse): Promise<void> {
    const rpc = this.#rpcs.get(request.url.pathname);
    this.#served.set(message, { request, route: () => rpc?.value.requestPath ?? "none" });
    if (hasBody(message)) {
      const onEnd = (act: () => void): unknown => response.once("close", act);
      countBody(message, { room: this.#options.bodyRoom, owner: tenantOf(request), onEnd });
    }
    if (rpc !== undefined) {
      await this.#serveRpc(rpc, request, message, response);
      return;
    }
    // A listener may have the name of a surface without routes.
    if (this.#koa === undefined)
      throw new SandboxError("route_not_found", `surface '${this.name}' serves nothing`);
    await this.#koa(message, response);
  }

  /** Returns the pattern of the route that serves a request, as soon as it is known. */
  routeOf(message: IncomingMessage): RoutePattern {
    return this.#served.get(message)?.route() ?? "none";
  }

  /** Passes an authorized upgrade to the handler of its path. @throws HttpError when there is none, or it refuses. */
  async upgrade(request: SurfaceRequest, upgrade: Parameters<UpgradeHandler>[1]): Promise<void> {
    const { pathname } = request.url;
    const found = this.#upgrades.find(({ path }) => matches(path, pathname));
    const route = found?.path ?? "none";
    try {
      if (found === undefined)
        throw new SandboxError("route_not_found", `no WebSocket at ${pathname} on surface '${this.name}'`);
      requireScope(request, UPGRADE_SCOPE);
      const { message, socket } = upgrade;
      const onEnd = (act: () => void): unknown => socket.once("close", act);
      countBody(message, { room: this.#options.bodyRoom, owner: tenantOf(request), onEnd });
      await runAs(found.plugin, () => found.accept(request, upgrade));
    } catch (error) {
      throw this.#refuse(request, await this.#options.explain(error, request), route);
    }
    this.#tell(request, { status: 101, route });
  }

  async #serveRpc(
    { plugin, value: rpc, stream }: Rpc,
    request: SurfaceRequest,
    message: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    // Connect passes it unchecked to setTimeout, which turns anything longer than 2^31 ms into 1 ms.
    if (Number(message.headers["connect-timeout-ms"]) > MAX_TIMER_MS)
      delete message.headers["connect-timeout-ms"];
    const route = rpc.requestPath;
    const values = createContextValues().set(requestKey, request).set(responseKey, response);
    let answer;
    try {
      requireScope(request, RPC_SCOPE);
      const onAnswer = (): void => this.#tell(request, { status: 200, route });
      const call = { request, message, response, values, onAnswer };
      const { messageLimitBytes: limitBytes } = this.#options;
      const read = stream && (await readStreamCall(stream, call, limitBytes));
      if (typeof read === "function") {
        await runAs(plugin, read);
        return;
      }
      const { input } = rpc.method;
      const universal = {
        httpVersion: message.httpVersion,
        method: request.method,
        url: request.url.href,
        header: headersOf(message.headers),
        body: boundedBody(bodyChunks(message, read), { message, input, limitBytes }),
        signal: request.signal,
        contextValues: values,
      };
      answer = await runAs(plugin, () => rpc(universal));
      if (mayBeUnparsable(message.headers)) answer = await blameSender(answer);
      if (answer.body === undefined && answer.status >= 400) {
        for (const [name, value] of answer.header ?? []) response.setHeader(name, value);
        throw new HttpError(answer.status, rpcRefusal(answer.status, message), { reason: "request_invalid" });
      }
    } catch (error) {
      throw this.#refuse(request, error, route);
    }
    this.#tell(request, { status: answer.status, route });
    await sendAnswer(answer, response);
  }

  /** @returns the error to answer; undefined when another server has answered. */
  async #passOn(
    error: unknown,
    request: SurfaceRequest,
    exchange: Parameters<Peer["relay"]>[1],
  ): Promise<unknown> {
    const { message, response } = exchange;
    const isWhole = bodyOf(message) !== undefined || !message.readableDidRead;
    if (response.headersSent || !isWhole) return error;
    try {
      const peer = await this.#options.peerOf(error, request);
      if (peer === undefined) return error;
      await peer.relay(request, exchange);
      return undefined;
    } catch (failure) {
      return failure;
    }
  }

  /** Reports a refusal to observers. @returns the error to throw. */
  #refuse(request: SurfaceRequest, error: unknown, route: RoutePattern): HttpError {
    const refusal = this.answerTo(error, request);
    this.#tell(request, { status: refusal.status, route });
    return refusal;
  }

  /** Returns the answer to a request that failed, with a body of its route's contract, or else with the reason in it. */
  answerTo(error: unknown, request: SurfaceRequest): HttpError {
    const answer = toHttpError(error, request.log);
    const {
      method,
      url: { pathname },
    } = request;
    const router = this.#routers.find(
      ({ value, errors, below }) =>
        errors !== "e2b" &&
        (value.match(pathname, method).route ||
          (below !== undefined && `${pathname}/`.startsWith(`${below}/`))),
    );
    // A refusal at the edge is the same whether the sandbox, and so its surface, was found or not.
    if (typeof router?.errors === "function" && !(answer instanceof EdgeRefusal))
      return withBody(answer, router.errors(answer, request));
    // Where there is no route, the body has no reason, as E2B's.
    const givesReason = router !== undefined || this.#upgrades.some(({ path }) => matches(path, pathname));
    return givesReason ? withReason(answer) : answer;
  }

  #tell(request: SurfaceRequest, answered: Omit<Answered, "sandboxId">): void {
    if (this.#observers.length === 0) return;
    const sandboxId = notedSandbox(request);
    for (const { plugin, value: observer } of this.#observers)
      runAs(plugin, () => observer(request, { ...answered, sandboxId }));
  }

  /** The router of each path without parameters that only one has: asking all takes as long as the rest of koa. */
  #routerByPath(): ReadonlyMap<string, Router> {
    const found = new Map<string, Router>();
    for (const { path } of this.#routers.flatMap(({ value }) => value.stack)) {
      if (typeof path !== "string" || !/^[\w/.-]+$/.test(path)) continue;
      const [only, ...others] = this.#routers.filter(({ value }) =>
        value.stack.some((layer) => layer.match(path)),
      );
      if (only !== undefined && others.length === 0) found.set(path, only.value);
    }
    return found;
  }

  #methodsAt(path: string): readonly string[] {
    return [
      ...new Set(
        this.#routers.flatMap(({ value }) =>
          value.stack
            .filter((layer) => layer.methods.length > 0 && layer.match(path))
            .flatMap((layer) => layer.methods),
        ),
      ),
    ];
  }
}

const PARAMETER = /:[A-Za-z_]\w*/g;

function verbOf({ kind, method }: ServedRoute): string {
  return kind === "upgrade" ? "UPGRADE" : method;
}

/** Set by the router on the context of the matched route. */
function matchedRoute(context: object): RoutePattern {
  const { _matchedRoute: pattern } = context as { readonly _matchedRoute?: string | RegExp };
  return pattern?.toString() ?? "none";
}

function rpcRefusal(status: number, message: IncomingMessage): string {
  if (status === 405) return `an RPC takes POST, not ${message.method}`;
  if (status === 415)
    return `an RPC does not take the content type '${message.headers["content-type"] ?? ""}'`;
  return "the RPC was refused";
}

function matches(pattern: string, pathname: string): boolean {
  const expected = pattern.split("/");
  const actual = pathname.split("/");
  return (
    expected.length === actual.length &&
    expected.every((segment, index) =>
      segment.startsWith(":") ? actual[index] !== "" : segment === actual[index],
    )
  );
}
