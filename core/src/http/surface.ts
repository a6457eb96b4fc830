import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import Router from "@koa/router";
import { type ConnectRouter, createConnectRouter, createContextValues } from "@connectrpc/connect";
import {
  compressionGzip,
  universalRequestFromNodeRequest,
  universalResponseToNodeResponse,
} from "@connectrpc/connect-node";
import type { UniversalHandler } from "@connectrpc/connect/protocol";
import Koa from "koa";
import type { BootProblem } from "../kernel/errors.js";
import type { Logger } from "../observe/logger.js";
import type { Guard, UpgradeHandler } from "../plugin.js";
import { HttpError } from "./http-error.js";
import { bindRequest, requestIn, type SurfaceRequest } from "./surface-request.js";
import { errorInterceptor, toHttpError, writeHttpError } from "./wire-errors.js";

export interface SurfaceOptions {
  readonly log: Logger;
  /** Bytes of one RPC message. */
  readonly messageLimitBytes: number;
}

const LONGEST_TIMER_MS = 2 ** 31 - 1;

interface Upgrade {
  readonly plugin: string;
  readonly path: string;
  readonly accept: UpgradeHandler;
}

interface Owned<T> {
  readonly plugin: string;
  readonly value: T;
}

interface Served {
  readonly request: SurfaceRequest;
  pattern: RoutePattern;
}

/** What a request was answered by: a route pattern, never the raw path, which is unbounded. */
export type RoutePattern = string;

/** A named set of routes, RPCs, upgrades and guards that plugins fill and listeners serve. */
export class Surface {
  readonly name: string;
  readonly #options: SurfaceOptions;
  readonly #routers: Owned<Router>[] = [];
  readonly #rpcRouters: Owned<ConnectRouter>[] = [];
  readonly #upgrades: Upgrade[] = [];
  readonly #guards: Guard[] = [];
  /** Koa makes its context from the message alone: this is how a request gets into `ctx.state`. */
  readonly #served = new WeakMap<IncomingMessage, Served>();
  #koa: ReturnType<Koa["callback"]> | undefined;
  #rpcs: ReadonlyMap<string, UniversalHandler> = new Map();

  constructor(name: string, options: SurfaceOptions) {
    this.name = name;
    this.#options = options;
  }

  /** True when some plugin serves something here. */
  get isServed(): boolean {
    return this.#routers.length + this.#rpcRouters.length + this.#upgrades.length > 0;
  }

  get isGuarded(): boolean {
    return this.#guards.length > 0;
  }

  router(plugin: string): Router {
    const router = new Router();
    this.#routers.push({ plugin, value: router });
    return router;
  }

  rpcRouter(plugin: string): ConnectRouter {
    const router = createConnectRouter({
      grpc: false,
      grpcWeb: false,
      acceptCompression: [compressionGzip],
      // The SDKs offer gzip on everything; compressing a live stream would hold its messages back.
      compressMinBytes: Number.MAX_SAFE_INTEGER,
      readMaxBytes: this.#options.messageLimitBytes,
      jsonOptions: { ignoreUnknownFields: true },
      interceptors: [errorInterceptor((values) => requestIn(values).log)],
    });
    this.#rpcRouters.push({ plugin, value: router });
    return router;
  }

  addUpgrade(plugin: string, path: string, accept: UpgradeHandler): void {
    this.#upgrades.push({ plugin, path, accept });
  }

  addGuard(guard: Guard): void {
    this.#guards.push(guard);
  }

  /** Every pair of plugins that claim the same route, RPC path or upgrade path. */
  collisions(): readonly BootProblem[] {
    const owners = new Map<string, string>();
    const problems: BootProblem[] = [];
    const claim = (plugin: string, kind: string, key: string): void => {
      const normalized = key.replace(/:[A-Za-z_]\w*/g, ":");
      const owner = owners.get(`${kind} ${normalized}`);
      if (owner === undefined) owners.set(`${kind} ${normalized}`, plugin);
      else
        problems.push({
          message: `plugins '${owner}' and '${plugin}' both serve ${kind} ${key} on surface '${this.name}'`,
        });
    };
    for (const { plugin, value } of this.#routers) {
      for (const layer of value.stack) {
        // A layer without methods is middleware; HEAD comes along with every GET.
        for (const method of layer.methods) if (method !== "HEAD") claim(plugin, method, String(layer.path));
      }
    }
    for (const { plugin, value } of this.#rpcRouters) {
      for (const handler of value.handlers) claim(plugin, "POST", handler.requestPath);
    }
    for (const { plugin, path } of this.#upgrades) claim(plugin, "UPGRADE", path);
    return problems;
  }

  /** Freezes what was registered into handlers. Call once, before the first request. */
  seal(): void {
    this.#rpcs = new Map(
      this.#rpcRouters.flatMap(({ value }) =>
        value.handlers.map((handler) => [handler.requestPath, handler] as const),
      ),
    );
    const koa = new Koa();
    // What reaches koa's own handler was already answered below.
    koa.silent = true;
    const surface = this.name;
    koa.use(async (ctx, next) => {
      const served = this.#served.get(ctx.req);
      if (served === undefined) throw new Error("a request reached koa without a surface");
      ctx.state["request"] = served.request;
      try {
        await next();
        // Koa's own 404 is a text; an empty 404 makes the E2B SDKs miss "not found".
        if (ctx.status === 404 && ctx.body === undefined && ctx.respond !== false) {
          throw new HttpError(404, `no route for ${ctx.method} ${ctx.path} on surface '${surface}'`);
        }
      } catch (error) {
        ctx.respond = false;
        writeHttpError(ctx.res, toHttpError(error, served.request.log));
      } finally {
        // Set by the router on the context of the route that matched.
        const { _matchedRoute: pattern } = ctx as { _matchedRoute?: string | RegExp };
        if (pattern !== undefined) served.pattern = pattern.toString();
      }
    });
    for (const { value } of this.#routers) koa.use(value.routes());
    koa.use((ctx) => {
      const allowed = this.#methodsAt(ctx.path);
      if (allowed.length === 0) return;
      ctx.set("allow", allowed.join(", "));
      throw new HttpError(405, `${ctx.method} is not served at ${ctx.path}`);
    });
    this.#koa = koa.callback();
  }

  async letIn(request: SurfaceRequest): Promise<void> {
    for (const guard of this.#guards) await guard(request);
  }

  /** Serves a request that was let in; resolves with the pattern that served it; a stream may go on after that. */
  async serve(
    request: SurfaceRequest,
    message: IncomingMessage,
    response: ServerResponse,
  ): Promise<RoutePattern> {
    const rpc = this.#rpcs.get(request.url.pathname);
    if (rpc !== undefined) {
      await this.#serveRpc(rpc, request, message, response);
      return rpc.requestPath;
    }
    const served: Served = { request, pattern: "none" };
    this.#served.set(message, served);
    // A listener may have the name of a surface that nobody has put anything on.
    if (this.#koa === undefined) throw new HttpError(404, `surface '${this.name}' serves nothing`);
    await this.#koa(message, response);
    return served.pattern;
  }

  /** The upgrade handler for a path, if any. */
  upgradeFor(
    pathname: string,
  ): { readonly accept: UpgradeHandler; readonly pattern: RoutePattern } | undefined {
    const found = this.#upgrades.find(({ path }) => matches(path, pathname));
    return found && { accept: found.accept, pattern: found.path };
  }

  async #serveRpc(
    rpc: UniversalHandler,
    request: SurfaceRequest,
    message: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    // Connect gives it to setTimeout as it is, which takes anything longer than 2^31 ms for 1 ms.
    if (Number(message.headers["connect-timeout-ms"]) > LONGEST_TIMER_MS)
      delete message.headers["connect-timeout-ms"];
    const values = bindRequest(createContextValues(), request);
    const answer = await rpc(universalRequestFromNodeRequest(message, response, undefined, values));
    if (answer.body === undefined && answer.status >= 400) {
      for (const [name, value] of answer.header ?? []) response.setHeader(name, value);
      throw new HttpError(answer.status, rpcRefusal(answer.status, message));
    }
    await universalResponseToNodeResponse(answer, response);
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

/** Sockets of upgrades are raw: this is how one is refused. */
export function refuseUpgrade(socket: Duplex, { status, body }: HttpError): void {
  const text = typeof body === "string" ? body : JSON.stringify(body);
  socket.end(
    `HTTP/1.1 ${status} Refused\r\nconnection: close\r\ncontent-type: ${typeof body === "string" ? "text/plain" : "application/json"}\r\n` +
      `content-length: ${Buffer.byteLength(text)}\r\n\r\n${text}`,
  );
}
