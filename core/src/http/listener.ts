import { randomUUID } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { createServer as createTlsServer } from "node:https";
import {
  type AddressInfo,
  createServer as createTcpServer,
  type Server as TcpServer,
  Socket,
} from "node:net";
import { Server as TlsServer, TLSSocket } from "node:tls";
import type { Duplex } from "node:stream";
import { messageOf } from "../kernel/errors.js";
import type { HttpMetrics } from "../observe/http-metrics.js";
import type { Logger } from "../observe/logger.js";
import type { ClientAddresses } from "./clients/client-address.js";
import { answerPreflight, allowAnyOrigin, asksToNameSandbox } from "./messages/cors.js";
import type { Arrival, KnownPeers, Peer } from "./peers/peers.js";
import type { ExchangeLimit } from "./proxy/exchange-limit.js";
import type { ForeignPages } from "./clients/foreign-pages.js";
import { SandboxError } from "../kernel/errors.js";
import { isLoopbackName } from "./clients/local-client.js";
import type { PortConnections } from "./proxy/port-connections.js";
import { proxyRequest } from "./proxy/proxy-request.js";
import { proxyUpgrade } from "./proxy/proxy-upgrade.js";
import { refuseUpgrade, type RoutePattern, type Surface } from "./surfaces/surface.js";
import type { Surfaces } from "./surfaces/surfaces.js";
import type { SurfaceRequest, Target } from "./surfaces/surface-request.js";
import type { Targeting } from "./targeting/targeting.js";
import type { Listener } from "./surfaces/targets.js";
import { requireTrafficToken } from "./targeting/traffic-token.js";
import { refusalOf, toHttpError, writeHttpError } from "./messages/wire-errors.js";

export interface ListenerSettings {
  readonly name: string;
  readonly host: string;
  readonly port: number;
  readonly insecure: boolean;
  /** PEM texts. */
  readonly tls: { readonly cert: string; readonly key: string } | undefined;
  /** Times are in milliseconds. */
  readonly limits: {
    readonly headersTimeout: number;
    readonly idleTimeout: number;
    readonly maxConnections: number;
    readonly maxConnectionsPerAddress: number;
  };
}

export interface ListenerServices {
  readonly surfaces: Surfaces;
  readonly targeting: Targeting;
  readonly clientAddresses: ClientAddresses;
  readonly foreignPages: ForeignPages;
  readonly peers: Pick<KnownPeers, "arrivalAt">;
  readonly connections: PortConnections;
  readonly exchanges: ExchangeLimit;
  readonly metrics: HttpMetrics;
  readonly log: Logger;
}

/** Shared by all requests: each ends with it, and its stack would tell nothing. */
const CLIENT_GONE = new Error("the client is gone");
const LINGER_MS = 1000;
const SANE_REQUEST_ID = /^[\w.-]{1,128}$/;

/** Where a request goes: to a port of a program in the sandbox, to a surface of this server, or to another server. */
type Destination = { readonly url: URL } & (
  | { readonly kind: "peer"; readonly target: undefined; readonly peer: Peer }
  | { readonly kind: "proxy"; readonly target: Target }
  | { readonly kind: "surface"; readonly target: Target | undefined; readonly surface: Surface }
);

/** An HTTP/1.1 server: finds the target of each request and hands it to a surface or to a sandbox. */
export class HttpListener implements Listener {
  readonly name: string;
  readonly host: string;
  readonly isLoopback: boolean;
  readonly insecure: boolean;
  readonly tls: boolean;
  readonly #settings: ListenerSettings;
  readonly #services: ListenerServices;
  readonly #server: Server;
  /** One per running request: AbortSignal.any on a signal as old as the server would collect them forever. */
  readonly #running = new Set<AbortController>();
  readonly #upgraded = new Set<Duplex>();
  readonly #connections = new Map<string, number>();

  constructor(settings: ListenerSettings, services: ListenerServices) {
    this.#settings = settings;
    this.#services = services;
    ({ name: this.name, host: this.host, insecure: this.insecure } = settings);
    this.isLoopback = isLoopbackName(settings.host);
    this.tls = settings.tls !== undefined;
    const { headersTimeout, idleTimeout, maxConnections } = settings.limits;
    const options = {
      headersTimeout,
      // Node checks for slow clients every 30 s by default.
      connectionsCheckingInterval: Math.min(headersTimeout, 30_000),
      // A large upload may exceed any fixed time; the idle time-out ends a stalled one.
      requestTimeout: 0,
      keepAliveTimeout: idleTimeout,
      // curl and Java offer h2c on plain requests: only WebSocket upgrades leave the HTTP path.
      shouldUpgradeCallback: (message: IncomingMessage) =>
        message.headers.upgrade?.toLowerCase() === "websocket",
    };
    this.#server =
      settings.tls === undefined ? createServer(options) : createTlsServer({ ...options, ...settings.tls });
    this.#server.maxConnections = maxConnections;
    this.#server.timeout = idleTimeout;
    this.#server.on("connection", (socket: Socket) => this.#count(socket));
    this.#server.on("request", (message, response) => void this.#serve(message, response));
    this.#server.on("upgrade", (message, socket, head) => void this.#upgrade(message, socket, head));
    // The SDK waits with the body only when it asks to; tells it to continue at once.
    this.#server.on("checkContinue", (message, response: ServerResponse) => {
      response.writeContinue();
      void this.#serve(message, response);
    });
  }

  get port(): number {
    return (this.#server.address() as AddressInfo | null)?.port ?? 0;
  }

  /** URL for clients on this machine. */
  get url(): string {
    const host = ["0.0.0.0", "::"].includes(this.host) ? "127.0.0.1" : this.host;
    return `${this.tls ? "https" : "http"}://${host.includes(":") ? `[${host}]` : host}:${this.port}`;
  }

  get requests(): number {
    return this.#running.size;
  }

  /** Uses another certificate for new connections. @throws Error when key and certificate cannot be used. */
  renew(tls: { readonly cert: string; readonly key: string }): void {
    if (this.#server instanceof TlsServer) this.#server.setSecureContext(tls);
  }

  /** Binds the address for a moment. @throws Error naming the address when it cannot be bound. */
  async tryAddress(): Promise<void> {
    const server = createTcpServer();
    await this.#bind(server);
    await new Promise<void>((resolve) => server.close(() => resolve()));
  }

  /** @throws Error naming the address when it cannot be bound. */
  open(): Promise<void> {
    return this.#bind(this.#server);
  }

  async #bind(server: Server | TcpServer): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    server.once("error", reject);
    server.listen(this.#settings.port, this.#settings.host, resolve);
    try {
      await promise;
    } catch (error) {
      throw new Error(
        `listener '${this.name}' cannot bind ${this.host}:${this.#settings.port}: ${messageOf(error)}`,
        {
          cause: error,
        },
      );
    } finally {
      server.off("error", reject);
    }
  }

  /** Takes no new connection, lets running requests end until the signal aborts, then cuts them. */
  async close(giveUp: AbortSignal): Promise<void> {
    if (!this.#server.listening) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#server.close(() => resolve());
    this.#server.closeIdleConnections();
    const cut = (): void => this.cut("the server is stopping");
    giveUp.addEventListener("abort", cut, { once: true });
    if (giveUp.aborted) cut();
    await promise;
    giveUp.removeEventListener("abort", cut);
  }

  /** Cuts every connection; new ones are taken. */
  cut(reason: string): void {
    for (const request of this.#running) request.abort(new Error(reason));
    for (const socket of this.#upgraded) socket.destroy();
    this.#server.closeAllConnections();
  }

  #count(socket: Socket): void {
    const client = this.#services.clientAddresses.countedFor(socket.remoteAddress);
    if (client === undefined) return;
    const open = this.#connections.get(client) ?? 0;
    if (open >= this.#settings.limits.maxConnectionsPerAddress) {
      socket.destroy();
      return;
    }
    this.#connections.set(client, open + 1);
    socket.once("close", () => {
      const left = (this.#connections.get(client) ?? 0) - 1;
      if (left > 0) this.#connections.set(client, left);
      else this.#connections.delete(client);
    });
  }

  async #serve(message: IncomingMessage, response: ServerResponse): Promise<void> {
    const startedAt = performance.now();
    const { id, logOf } = this.#identify(message);
    // Not before an answer of a program: Node writes the headers of those faster where none was set.
    const name = (): unknown => response.headersSent || response.setHeader("x-request-id", id);
    let surfaceName = this.name;
    // Read at the end: a client may have its answer before the route has matched.
    let routeOf: (message: IncomingMessage) => RoutePattern = () => "none";
    let answerTo = (error: unknown) => toHttpError(error, logOf());
    const use = this.#use(response);
    response.once("close", () => {
      const answered = {
        surface: surfaceName,
        route: routeOf(message),
        method: message.method ?? "",
        status: response.statusCode,
        seconds: (performance.now() - startedAt) / 1000,
      };
      use.end();
      this.#services.metrics(answered);
      if (this.#services.log.isLevelEnabled("debug"))
        logOf().debug({ ...answered, reason: refusalOf(response) }, "request ended");
    });
    // A client that leaves in the middle of either direction must not cause an unhandled error.
    message.on("error", () => undefined);
    response.on("error", () => undefined);
    response.once("finish", () => drainThenClose(message));
    try {
      this.#refuseForeign(message);
      const arrival = this.#services.peers.arrivalAt(this.name, message);
      if (asksToNameSandbox(message)) {
        name();
        allowAnyOrigin(response);
        answerPreflight(response);
        return;
      }
      const destination = await this.#destination(message, arrival);
      const request = this.#request({ id, logOf, message, destination, closing: response });
      surfaceName = request.surface;
      if (destination.kind === "peer") {
        routeOf = () => "peer";
        await destination.peer.relay(request, { message, response });
        return;
      }
      if (destination.target !== undefined) cutWhenEnded(destination.target, message.socket, response);
      if (destination.kind === "proxy") {
        const { target } = destination;
        routeOf = () => "proxy";
        await this.#services.targeting.authorize(request);
        requireTrafficToken(target, message.headers);
        // The client left while its sandbox was looked up: no later event would decrease the count.
        if (response.destroyed) return;
        const { connections, exchanges } = this.#services;
        response.once("close", exchanges(target));
        await use.begin(target, request);
        await proxyRequest({ request, target, message, response }, connections);
        return;
      }
      name();
      const { target, surface } = destination;
      answerTo = (error) => surface.answerTo(error, request);
      if (target !== undefined) {
        allowAnyOrigin(response);
        if (message.method === "OPTIONS") {
          answerPreflight(response);
          return;
        }
        await this.#services.targeting.authorize(request);
        requireTrafficToken(target, message.headers);
      }
      const admitted = await admit(request, surface, arrival);
      const peer = arrival === undefined ? await this.#services.targeting.peerOf(admitted) : undefined;
      if (peer !== undefined) {
        routeOf = () => "peer";
        await peer.relay(admitted, { message, response });
        return;
      }
      if (target !== undefined) await use.begin(target, request);
      routeOf = () => surface.routeOf(message);
      await surface.serve(admitted, message, response);
    } catch (error) {
      if (response.destroyed) return;
      name();
      writeHttpError(response, answerTo(error));
    }
  }

  async #upgrade(message: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const { id, logOf } = this.#identify(message);
    let answerTo = (error: unknown) => toHttpError(error, logOf());
    socket.on("error", () => undefined);
    this.#upgraded.add(socket);
    const use = this.#use(socket);
    socket.once("close", () => {
      this.#upgraded.delete(socket);
      use.end();
    });
    try {
      this.#refuseForeign(message);
      const arrival = this.#services.peers.arrivalAt(this.name, message);
      const destination = await this.#destination(message, arrival);
      const request = this.#request({ id, logOf, message, destination, closing: socket });
      if (destination.kind === "peer") {
        await destination.peer.relayUpgrade(request, { message, socket, head });
        return;
      }
      const { target } = destination;
      if (destination.kind === "surface") answerTo = (error) => destination.surface.answerTo(error, request);
      if (target !== undefined) {
        cutWhenEnded(target, socket, socket);
        await this.#services.targeting.authorize(request);
        requireTrafficToken(target, message.headers);
      }
      if (destination.kind === "proxy") {
        if (socket.destroyed) return;
        const { target } = destination;
        const { connections, exchanges } = this.#services;
        socket.once("close", exchanges(target));
        await use.begin(target, request);
        await proxyUpgrade({ request, target, message, socket, head }, connections);
        return;
      }
      const { surface } = destination;
      const admitted = await admit(request, surface, arrival);
      const peer = arrival === undefined ? await this.#services.targeting.peerOf(admitted) : undefined;
      if (peer !== undefined) {
        await peer.relayUpgrade(admitted, { message, socket, head });
        return;
      }
      if (target !== undefined) await use.begin(target, request);
      await surface.upgrade(admitted, { message, socket, head });
    } catch (error) {
      if (!socket.destroyed) refuseUpgrade(socket, answerTo(error));
    }
  }

  async #destination(message: IncomingMessage, arrival: Arrival | undefined): Promise<Destination> {
    // HTTP/1.0 has no Host, and libraries on top rely on one.
    message.headers.host ??= this.name;
    const url = parseUrl(message);
    const { surfaces, targeting } = this.#services;
    const name = arrival?.listener ?? this.name;
    const found =
      arrival === undefined ? await targeting.find(message, url, this) : targeting.findHere(message);
    if (found !== undefined && "relay" in found) return { kind: "peer", url, target: undefined, peer: found };
    const target = found;
    const claiming = target && surfaces.ofPort(target.port);
    if (target !== undefined && claiming === undefined) return { kind: "proxy", url, target };
    requirePlainPath(message, url);
    return { kind: "surface", url, target, surface: claiming ?? surfaces.get(name) };
  }

  /** @throws SandboxError 400 for an ambiguous host, 403 for a web page from elsewhere at a listener on loopback. */
  #refuseForeign({ headers, headersDistinct }: IncomingMessage): void {
    if ((headersDistinct["host"]?.length ?? 0) > 1)
      throw new SandboxError("host_invalid", "the request has several hosts");
    if (this.isLoopback) this.#services.foreignPages(headers);
  }

  /** Marks a sandbox as used by a request. Runs after all access checks: it may resume the sandbox. */
  #use(closing: ServerResponse | Duplex) {
    let end = (): void => {};
    return {
      begin: async (target: Target, request: SurfaceRequest): Promise<void> => {
        end = await this.#services.targeting.use(target, request);
        if (closing.destroyed) end();
      },
      end: () => end(),
    };
  }

  /** Few requests log anything: a logger that knows the request is made for those alone. */
  #identify(message: IncomingMessage): { readonly id: string; readonly logOf: () => Logger } {
    const given = message.headers["x-request-id"];
    const id = typeof given === "string" && SANE_REQUEST_ID.test(given) ? given : randomUUID();
    let log: Logger | undefined;
    return { id, logOf: () => (log ??= this.#services.log.child({ requestId: id })) };
  }

  #request(parts: {
    readonly id: string;
    readonly logOf: () => Logger;
    readonly message: IncomingMessage;
    readonly destination: Destination;
    readonly closing: ServerResponse | Duplex;
  }): SurfaceRequest {
    const { id, logOf, message, destination, closing } = parts;
    const { url, target } = destination;
    let log: Logger | undefined;
    const gone = new AbortController();
    this.#running.add(gone);
    closing.once("close", () => {
      this.#running.delete(gone);
      gone.abort(CLIENT_GONE);
    });
    return {
      id,
      surface: destination.kind === "surface" ? destination.surface.name : destination.kind,
      method: message.method ?? "",
      url,
      headers: message.headers,
      get log() {
        log ??= target === undefined ? logOf() : logOf().child({ sandboxId: target.sandbox.record.id });
        return log;
      },
      signal: gone.signal,
      target,
      protocol: this.#services.clientAddresses.protocolOf(message.socket, message.headers),
      clientAddress: this.#services.clientAddresses.of(message.socket.remoteAddress, message.headers),
      principal: undefined,
    };
  }
}

/** Runs the guards of a surface, unless those of another server have done so. */
async function admit(
  request: SurfaceRequest,
  surface: Surface,
  arrival: Arrival | undefined,
): Promise<SurfaceRequest> {
  return arrival === undefined ? surface.authorize(request) : { ...request, principal: arrival.principal };
}

function parseUrl({ url = "/" }: IncomingMessage): URL {
  const text = url.startsWith("/") ? `http://server${url}` : url;
  const parsed = URL.parse(text, "http://server");
  if (parsed === null) throw new SandboxError("target_invalid", "the request target is no URL");
  return parsed;
}

/**
 * Refuses paths that a URL parser and the router read differently: guards see the parsed path, routes the raw one.
 * @throws SandboxError target_invalid
 */
function requirePlainPath(message: IncomingMessage, url: URL): void {
  // Proxies may send an absolute URL: the path begins after its host.
  const [path = ""] = (message.url ?? "/").replace(/^[a-z]+:\/\/[^/?#]*/i, "").split(/[?#]/, 1);
  const isPlain = !/\\|\/\/|(^|\/)(\.|%2e){1,2}(\/|$)/i.test(path);
  if (!isPlain)
    throw new SandboxError("target_invalid", "the path has a backslash, an empty or a dot segment");
  message.url = url.pathname + url.search;
}

/**
 * Sends a refusal before the body is read. Cutting the connection at once would lose the answer at a client that is
 * still writing; reading on without limit would let it write forever.
 */
function drainThenClose(message: IncomingMessage): void {
  if (message.complete) return;
  message.resume();
  const timer = setTimeout(() => {
    // After a complete request the connection already serves the next one.
    if (!message.complete) message.socket.destroy();
  }, LINGER_MS).unref();
  message.once("close", () => clearTimeout(timer));
}

/**
 * Destroys each connection that serves a sandbox when the sandbox ends. The SDK tells "killed" from "network trouble"
 * by a connection that breaks instead of ending.
 */
function cutWhenEnded({ sandbox }: Target, socket: Duplex, closing: ServerResponse | Duplex): void {
  const cut = (): void => {
    // Older SDKs take a plain end inside of an answer for a protocol error. TLS has no reset. Node loses a socket that
    // is reset while its end is still being sent: the descriptor would stay open forever.
    const isEnding = socket.writableEnded && !socket.writableFinished;
    if (socket instanceof Socket && !(socket instanceof TLSSocket) && !isEnding) socket.resetAndDestroy();
    else socket.destroy();
  };
  sandbox.ended.addEventListener("abort", cut, { once: true });
  closing.once("close", () => sandbox.ended.removeEventListener("abort", cut));
}
