import { once } from "node:events";
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
import { messageOf, SandboxError } from "../kernel/errors.js";
import type { HttpMetrics } from "../observe/metrics.js";
import { isTraced, traced, type TracedWork } from "../observe/tracing.js";
import type { Logger } from "../observe/logger.js";
import type { ClientAddresses } from "./clients/client-address.js";
import { paceFrames, paceReads, joinChunks, TlsTurns } from "./clients/paced-reads.js";
import { answerPreflight, allowAnyOrigin, asksToNameSandbox, hasBody } from "./messages/heads.js";
import type { Arrival, KnownPeers } from "./peers/peers.js";
import { type Peer, type SurfaceRequest, type Target, withPrincipal } from "./surfaces/surface-request.js";
import type { ExchangeLimit, PortConnections } from "./proxy/port-connections.js";
import { type ForeignPages, isLoopbackName } from "./clients/local-client.js";
import type { Sender } from "../kernel/turns.js";
import { proxyRequest } from "./proxy/proxy-request.js";
import { proxyUpgrade } from "./proxy/proxy-upgrade.js";
import { refuseUpgrade } from "./messages/last-answer.js";
import { IncomingRequest } from "./surfaces/incoming-request.js";
import type { RoutePattern, Surface } from "./surfaces/surface.js";
import type { Surfaces } from "./surfaces/surfaces.js";
import { factsOfEnd } from "../sandbox/model/describe-end.js";
import type { LiveSandbox } from "../sandbox/model/live-sandbox.js";
import { type Targeting, requireTrafficToken } from "./targeting/targeting.js";
import type { Listener } from "./surfaces/targets.js";
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
  readonly peers: Pick<KnownPeers, "arrivalAt" | "prepare" | "requirePlace">;
  readonly connections: PortConnections;
  readonly exchanges: ExchangeLimit;
  readonly metrics: HttpMetrics;
  readonly log: Logger;
}

const LINGER_MS = 1000;
const BAD_REQUEST = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
/** Requests of a connection that may wait for the answers of those before. Nearly no client has any. */
const MOST_PIPELINED = 32;
/** Surface and route of requests to ports of programs in sandboxes, and of those for other servers. */
const PROXY = "proxy";
const PEER = "peer";

/** Where a request goes: to a port of a program in the sandbox, to a surface of this server, or to another server. */
type Destination =
  | { readonly kind: "peer"; readonly target: undefined; readonly peer: Peer }
  | { readonly kind: "proxy"; readonly target: Target }
  | { readonly kind: "surface"; readonly target: Target | undefined; readonly surface: Surface };

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
  readonly #running = new Set<IncomingRequest>();
  readonly #upgraded = new Set<Duplex>();
  readonly #connections = new Map<string, number>();
  #certificate: string | undefined;

  constructor(settings: ListenerSettings, services: ListenerServices) {
    this.#settings = settings;
    this.#services = services;
    ({ name: this.name, host: this.host, insecure: this.insecure } = settings);
    this.isLoopback = isLoopbackName(settings.host);
    this.tls = settings.tls !== undefined;
    this.#certificate = settings.tls?.cert;
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
    // After the listener of Node, which gives the socket its parser.
    const senderOf = (socket: Socket): Sender =>
      services.clientAddresses.countedFor(socket.remoteAddress) ?? socket;
    if (settings.tls === undefined)
      this.#server.on("connection", (socket) => paceReads(socket, senderOf(socket)));
    else {
      const turns = new TlsTurns();
      this.#server.on("connection", (socket: Socket) => turns.add(socket, senderOf(socket)));
      this.#server.on("secureConnection", (socket: Socket) => {
        paceReads(socket, senderOf(socket));
        turns.watch(socket);
      });
    }
    this.#server.on("request", (message, response) => void this.#answer(message, response));
    this.#server.on("upgrade", (message, socket, head) => void this.#upgrade(message, socket, head));
    // The SDK waits with the body only when it asks to; tells it to continue at once.
    this.#server.on("checkContinue", (message, response: ServerResponse) => {
      response.writeContinue();
      void this.#answer(message, response);
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

  /** The certificate in use, as PEM; undefined without TLS. */
  get certificate(): string | undefined {
    return this.#certificate;
  }

  /** Uses another certificate for new connections. @throws Error when key and certificate cannot be used. */
  renew(tls: { readonly cert: string; readonly key: string }): void {
    if (!(this.#server instanceof TlsServer)) return;
    this.#server.setSecureContext(tls);
    this.#certificate = tls.cert;
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
    for (const request of this.#running) request.abort(new SandboxError("server_stopped", reason));
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

  async #answer(message: IncomingMessage, response: ServerResponse): Promise<void> {
    if (message.socket.destroyed) return;
    if (!isTraced()) return this.#serve(message, response);
    const attributes: TracedWork["attributes"] = {};
    const run = async (): Promise<void> => {
      await this.#serve(message, response, attributes);
      // A stream goes on for long after its handler has returned.
      if (!response.closed) await once(response, "close");
    };
    await traced("request", run, { headers: message.headers, attributes });
  }

  /** @param attributes gets what a trace says of the request. */
  async #serve(
    message: IncomingMessage,
    response: ServerResponse,
    attributes?: TracedWork["attributes"],
  ): Promise<void> {
    const startedAt = performance.now();
    const request = this.#begin(message, response);
    // Not before an answer of a program: Node writes the headers of those faster where none was set.
    const name = (): unknown => response.headersSent || response.setHeader("x-request-id", request.id);
    let surface: Surface | undefined;
    // Read at the end: a client may have its answer before the route has matched.
    let routeOf = (): RoutePattern => surface?.routeOf(message) ?? "none";
    request.onEnd(() => {
      const answered = {
        surface: request.surface,
        route: routeOf(),
        method: request.method,
        status: response.statusCode,
        seconds: (performance.now() - startedAt) / 1000,
      };
      this.#services.metrics(answered);
      if (attributes !== undefined)
        Object.assign(attributes, {
          "http.request.method": answered.method,
          "http.route": answered.route,
          "http.response.status_code": answered.status,
          "coppice.surface": answered.surface,
          "coppice.request_id": request.id,
          "coppice.sandbox": request.target?.sandbox.record.id,
          "coppice.reason": refusalOf(response),
        });
      if (!this.#services.log.isLevelEnabled("debug")) return;
      request.log.debug({ ...answered, reason: refusalOf(response) }, "request ended");
    });
    // A client that leaves in the middle of either direction must not cause an unhandled error.
    message.on("error", ignore);
    response.on("error", ignore);
    if (response.socket === null) boundPipeline(message.socket, response);
    const { socket } = message;
    if (hasBody(message)) response.once("finish", () => drainThenClose(message, socket));
    if (message.headers["transfer-encoding"] !== undefined)
      joinChunks(message, () => refuseChunks(message, response));
    try {
      this.#refuseForeign(message);
      const arrival = this.#services.peers.arrivalAt(this.name, message);
      if (asksToNameSandbox(message)) {
        name();
        allowAnyOrigin(response);
        answerPreflight(response);
        return;
      }
      const destination = await this.#direct(message, request, arrival);
      if (destination.kind === "peer") {
        routeOf = () => PEER;
        name();
        await destination.peer.relay(request, { message, response });
        return;
      }
      if (destination.target !== undefined) cutWhenEnded(destination.target, message.socket, request);
      if (destination.kind === "proxy") {
        const { target } = destination;
        routeOf = () => PROXY;
        await this.#services.targeting.authorize(request);
        requireTrafficToken(target, message.headers);
        // The client left while its sandbox was looked up: no later event would decrease the count.
        if (response.destroyed) return;
        const { connections, exchanges } = this.#services;
        request.onEnd(exchanges(target));
        await this.#use(target, request);
        await proxyRequest({ request, target, message, response }, connections);
        return;
      }
      name();
      const { target } = destination;
      surface = destination.surface;
      if (target !== undefined) {
        allowAnyOrigin(response);
        if (message.method === "OPTIONS") {
          answerPreflight(response);
          return;
        }
        await this.#services.targeting.authorize(request);
        requireTrafficToken(target, message.headers);
      }
      const admitted = await admit(request, destination.surface, arrival);
      const peer = await this.#services.targeting.peerOf(admitted);
      if (peer !== undefined) {
        routeOf = () => PEER;
        await peer.relay(admitted, { message, response });
        return;
      }
      if (target !== undefined) await this.#use(target, request);
      this.#services.peers.prepare(admitted, message);
      await destination.surface.serve(admitted, message, response);
    } catch (error) {
      if (response.destroyed) return;
      name();
      writeHttpError(response, surface?.answerTo(error, request) ?? toHttpError(error, request.log));
    }
  }

  async #upgrade(message: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const request = this.#begin(message, socket);
    socket.on("error", ignore);
    this.#upgraded.add(socket);
    request.onEnd(() => this.#upgraded.delete(socket));
    let surface: Surface | undefined;
    try {
      this.#refuseForeign(message);
      const arrival = this.#services.peers.arrivalAt(this.name, message);
      const destination = await this.#direct(message, request, arrival);
      if (destination.kind === "peer") {
        await destination.peer.relayUpgrade(request, { message, socket, head });
        return;
      }
      const { target } = destination;
      surface = destination.kind === "surface" ? destination.surface : undefined;
      if (target !== undefined) {
        cutWhenEnded(target, socket, request);
        await this.#services.targeting.authorize(request);
        requireTrafficToken(target, message.headers);
      }
      if (destination.kind === "proxy") {
        if (socket.destroyed) return;
        const { target } = destination;
        const { connections, exchanges } = this.#services;
        request.onEnd(exchanges(target));
        await this.#use(target, request);
        await proxyUpgrade({ request, target, message, socket, head }, connections);
        return;
      }
      const admitted = await admit(request, destination.surface, arrival);
      const peer = await this.#services.targeting.peerOf(admitted);
      if (peer !== undefined) {
        await peer.relayUpgrade(admitted, { message, socket, head });
        return;
      }
      if (target !== undefined) await this.#use(target, request);
      paceFrames(socket);
      await destination.surface.upgrade(admitted, { message, socket, head });
    } catch (error) {
      if (socket.destroyed) return;
      refuseUpgrade(message, socket, surface?.answerTo(error, request) ?? toHttpError(error, request.log));
    }
  }

  #begin(message: IncomingMessage, closing: ServerResponse | Duplex): IncomingRequest {
    const { clientAddresses, log } = this.#services;
    const request = new IncomingRequest(this.name, { message, closing, clientAddresses, log });
    this.#running.add(request);
    request.onEnd(() => this.#running.delete(request));
    return request;
  }

  async #direct(
    message: IncomingMessage,
    request: IncomingRequest,
    arrival: Arrival | undefined,
  ): Promise<Destination> {
    // HTTP/1.0 has no Host, and libraries on top rely on one.
    message.headers.host ??= this.name;
    request.isPassedOn = arrival !== undefined;
    const { surfaces, targeting, peers } = this.#services;
    const found =
      arrival === undefined
        ? await targeting.find(message, request, this)
        : await targeting.findHere(message, request.url, arrival.listener);
    if (found !== undefined && "relay" in found) {
      request.surface = PEER;
      return { kind: "peer", target: undefined, peer: found };
    }
    const target = found;
    request.target = target;
    const claiming = target && surfaces.ofPort(target.port);
    if (target !== undefined && claiming === undefined) {
      request.surface = PROXY;
      peers.requirePlace();
      return { kind: "proxy", target };
    }
    requirePlainPath(message, request.url);
    const surface = claiming ?? surfaces.get(arrival?.listener ?? this.name);
    request.surface = surface.name;
    // An operator looks there at a server that has lost its place.
    if (surface.name !== "ops") peers.requirePlace();
    return { kind: "surface", target, surface };
  }

  /** @throws SandboxError 400 for an ambiguous host, 403 for a web page from elsewhere at a listener on loopback. */
  #refuseForeign({ headers, rawHeaders }: IncomingMessage): void {
    let hosts = 0;
    for (let index = 0; index < rawHeaders.length; index += 2)
      if (rawHeaders[index]?.length === 4 && rawHeaders[index]?.toLowerCase() === "host") hosts += 1;
    if (hosts > 1) throw new SandboxError("host_invalid", "the request has several hosts");
    if (this.isLoopback) this.#services.foreignPages(headers);
  }

  /** Marks a sandbox as used by a request. Runs after all access checks: it may resume the sandbox. */
  async #use(target: Target, request: IncomingRequest): Promise<void> {
    request.onEnd(await this.#services.targeting.use(target, request));
  }
}

/**
 * Runs the guards of a surface. Another server's word about the sender takes their place only where it names one: it does not
 * know the token of a sandbox of this server, nor what a guard of this one alone asks for.
 */
async function admit(
  request: SurfaceRequest,
  surface: Surface,
  arrival: Arrival | undefined,
): Promise<SurfaceRequest> {
  const sender = request.target === undefined ? arrival?.principal : undefined;
  return sender === undefined ? surface.authorize(request) : withPrincipal(request, sender);
}

/**
 * Refuses paths that a URL parser and the router read differently: guards see the parsed path, routes the raw one.
 * @throws SandboxError target_invalid
 */
function requirePlainPath(message: IncomingMessage, url: URL): void {
  const { pathname, search } = url;
  const parsed = pathname + search;
  // A parser that has changed nothing has found no backslash and no dot segment.
  if (message.url === parsed && !pathname.includes("//")) return;
  // Proxies may send an absolute URL: the path begins after its host.
  const [path = ""] = (message.url ?? "/").replace(/^[a-z]+:\/\/[^/?#]*/i, "").split(/[?#]/, 1);
  const isPlain = !/\\|\/\/|(^|\/)(\.|%2e){1,2}(\/|$)/i.test(path);
  if (!isPlain)
    throw new SandboxError("target_invalid", "the path has a backslash, an empty or a dot segment");
  message.url = parsed;
}

/**
 * Sends a refusal before the body is read. Cutting the connection at once would lose the answer at a client that is
 * still writing; reading on without limit would let it write forever.
 */
function drainThenClose(message: IncomingMessage, socket: Socket): void {
  if (message.complete) return;
  message.resume();
  const timer = setTimeout(() => {
    // After a complete request the connection already serves the next one.
    if (!message.complete) socket.destroy();
  }, LINGER_MS).unref();
  message.once("close", () => clearTimeout(timer));
}

/** Answers that wait for those before them, by connection. */
const pipelined = new WeakMap<Socket, number>();

/** Closes a connection with very many unanswered requests. @param response one that waits for another. */
function boundPipeline(socket: Socket, response: ServerResponse): void {
  const count = (pipelined.get(socket) ?? 0) + 1;
  pipelined.set(socket, count);
  if (count > MOST_PIPELINED) socket.destroy();
  response.once("socket", () => {
    pipelined.set(socket, (pipelined.get(socket) ?? 1) - 1);
    // Node sends what there is of an answer that breaks off before its turn, and never ends it.
    if (response.destroyed) socket.destroy();
  });
}

/** Closes the connection of a client whose body has little but the framing of its chunks. */
function refuseChunks({ socket }: IncomingMessage, response: ServerResponse): void {
  if (response.headersSent || response.socket !== socket) socket.destroy();
  else if (socket.writable) socket.end(BAD_REQUEST, () => socket.destroy());
}

/**
 * Destroys each connection that serves a sandbox when the sandbox ends. The SDK tells "killed" from "network trouble"
 * by a connection that breaks instead of ending.
 */
function cutWhenEnded({ sandbox }: Target, socket: Duplex, request: IncomingRequest): void {
  const sockets = serving.get(sandbox) ?? cutTogether(sandbox);
  sockets.set(request, socket);
  request.onEnd(() => sockets.delete(request));
}

/** Time for answers that tell what the sandbox lacked. */
const TOLD_MS = 500;

/** By sandbox, the sockets of its requests. One listener for all: one for each would take microseconds. */
const serving = new WeakMap<LiveSandbox, Map<IncomingRequest, Duplex>>();

function cutTogether(sandbox: LiveSandbox): Map<IncomingRequest, Duplex> {
  const sockets = new Map<IncomingRequest, Duplex>();
  serving.set(sandbox, sockets);
  const cutAll = (): void => {
    for (const socket of sockets.values()) cutOff(socket);
  };
  const end = (): void => {
    const { lacked } = factsOfEnd(sandbox.ended.reason);
    if (lacked !== undefined) setTimeout(cutAll, TOLD_MS).unref();
    else cutAll();
  };
  sandbox.ended.addEventListener("abort", end, { once: true });
  return sockets;
}

function cutOff(socket: Duplex): void {
  // Older SDKs take a plain end inside of an answer for a protocol error. TLS has no reset. Node loses a socket that
  // is reset while its end is still being sent: the descriptor would stay open forever.
  const isEnding = socket.writableEnded && !socket.writableFinished;
  if (socket instanceof Socket && !(socket instanceof TLSSocket) && !isEnding) socket.resetAndDestroy();
  else socket.destroy();
}

function ignore(): void {}
