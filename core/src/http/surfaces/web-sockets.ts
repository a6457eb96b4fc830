import type { IncomingHttpHeaders, IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import { type WebSocket, WebSocketServer } from "ws";
import { countMessages } from "../../bounds/held-bodies.js";
import { Shares, type Tenants } from "../../bounds/tenants.js";
import type { Clock } from "../../kernel/clock.js";
import { SandboxError } from "../../kernel/errors.js";
import type { SandboxId } from "../../sandbox/contract/backend.js";
import type { LiveSandbox, SandboxRecord } from "../../sandbox/model/live-sandbox.js";
import { isSameOrigin } from "../clients/local-client.js";
import type { UpgradeHandler, SurfaceRequest } from "./surface-request.js";
import { isTurnOver, laterTurn } from "../../kernel/turns.js";

export type { WebSocket } from "ws";

/** Bounds of the WebSockets of a route, and the web pages that may open one. */
interface WebSocketRoom {
  readonly maxSockets: number;
  readonly maxSocketsPerSandbox: number;
  /** Web pages that may open one, beside those of this server. */
  readonly allowedOrigins: readonly string[];
}

interface WebSocketOpening {
  readonly request: SurfaceRequest;
  /** The request that asks for the WebSocket. */
  readonly message: IncomingMessage;
  readonly sandbox: LiveSandbox;
  /** Aborted when the client is gone, also before the handshake is answered. */
  readonly closed: AbortSignal;
}

/** Limits and handlers of a route for WebSockets. */
export interface WebSocketRoute {
  /** Largest message of a client. */
  readonly maxMessageBytes: number;
  /** A client that says nothing for a whole interval, and answers no ping, is cut. */
  readonly pingIntervalMs: number;
  /** Message that goes with each ping, for clients that do not see pings. */
  readonly pingMessage?: Uint8Array;
  /** Subprotocol that is chosen where a client offers it. */
  readonly protocol?: string;
  /** Undefined where the route has bounds and guards of its own. */
  readonly room?: WebSocketRoom;
  /** Undefined where a request is for the sandbox that it is addressed to. @throws SandboxError when it is for none. */
  readonly sandboxOf?: (request: SurfaceRequest) => LiveSandbox;
  /**
   * Prepares what the client is connected to. What it throws is the answer.
   * @returns the function that serves the open WebSocket.
   */
  readonly open: (
    opening: WebSocketOpening,
  ) => ((socket: WebSocket) => void) | Promise<(socket: WebSocket) => void>;
}

/** 16 bytes in base64: RFC 6455, 4.1. */
const WEBSOCKET_KEY = /^[+/0-9A-Za-z]{22}==$/;
const MAX_UNTAKEN_BYTES = 64 * 1024;

/** The WebSockets of a route, each for one sandbox: it ends with the sandbox. */
export class WebSockets {
  readonly #route: WebSocketRoute;
  readonly #clock: Clock;
  readonly #server: WebSocketServer;
  readonly #open = new Map<Duplex, SandboxId>();
  readonly #taken: Shares;

  constructor(
    route: WebSocketRoute,
    { clock, tenants }: { readonly clock: Clock; readonly tenants: Tenants },
  ) {
    const { room, protocol } = route;
    this.#route = route;
    this.#clock = clock;
    this.#taken = new Shares(room?.maxSockets ?? Infinity, room && tenants);
    this.#server = new WebSocketServer({
      noServer: true,
      clientTracking: false,
      maxPayload: route.maxMessageBytes,
      // Messages are mostly small and urgent.
      perMessageDeflate: false,
      autoPong: false,
      handleProtocols: (offered) => (protocol !== undefined && offered.has(protocol) ? protocol : false),
    });
  }

  readonly accept: UpgradeHandler = async (request, { message, socket, head }) => {
    this.#checkOrigin(message.headers);
    checkHandshake(message.headers);
    const sandbox = (this.#route.sandboxOf ?? addressedSandbox)(request);
    this.#add(socket, sandbox.record);
    const left = new AbortController();
    socket.once("close", () => left.abort());
    if (socket.destroyed) left.abort();
    const serve = await this.#route.open({ request, message, sandbox, closed: left.signal });
    if (left.signal.aborted) return;
    this.#server.handleUpgrade(message, socket, head, (webSocket) => {
      countMessages(webSocket, { message, socket });
      // Broken frames and lost connections: the socket closes, and that is handled.
      webSocket.on("error", () => undefined);
      // Pongs for a client that takes nothing would pile up.
      webSocket.on("ping", (data) => {
        if (webSocket.bufferedAmount < MAX_UNTAKEN_BYTES) webSocket.pong(data);
      });
      this.#pingUntilClosed(webSocket);
      serve(webSocket);
      const cut = (): void => webSocket.terminate();
      sandbox.ended.addEventListener("abort", cut, { once: true });
      webSocket.once("close", () => sandbox.ended.removeEventListener("abort", cut));
      if (sandbox.ended.aborted) cut();
    });
  };

  close(): void {
    for (const socket of this.#open.keys()) socket.destroy();
    this.#server.close();
  }

  /**
   * Refuses web pages of other sites: a page may open a WebSocket to any server, with the cookies and the address of its
   * visitor.
   */
  #checkOrigin(headers: IncomingHttpHeaders): void {
    const { room } = this.#route;
    if (room === undefined || isSameOrigin(headers) || room.allowedOrigins.includes(headers.origin ?? ""))
      return;
    throw new SandboxError("origin_not_allowed", "this web page may not open a WebSocket here");
  }

  /** Counts a socket until it closes. */
  #add(socket: Duplex, { id, owner }: Pick<SandboxRecord, "id" | "owner">): void {
    let ofSandbox = 0;
    for (const other of this.#open.values()) if (other === id) ofSandbox += 1;
    const most = this.#route.room?.maxSocketsPerSandbox ?? Infinity;
    if (ofSandbox >= most || this.#taken.take(owner) !== undefined) {
      throw new SandboxError("socket_limit_reached", "too many WebSockets are open");
    }
    this.#open.set(socket, id);
    socket.once("close", () => {
      this.#open.delete(socket);
      this.#taken.give(owner);
    });
  }

  #pingUntilClosed(socket: WebSocket): void {
    const { pingIntervalMs, pingMessage } = this.#route;
    let isAlive = true;
    for (const event of ["message", "pong"]) {
      socket.on(event, () => {
        isAlive = true;
      });
    }
    let cancel = (): void => undefined;
    const next = (): void => {
      cancel = this.#clock.after(pingIntervalMs, () => {
        // Pongs wait behind messages that are not read, pings behind those that the client does not take: neither
        // proves that the client is dead.
        if (!isAlive && !socket.isPaused && socket.bufferedAmount === 0) return socket.terminate();
        isAlive = false;
        if (socket.readyState === socket.OPEN) {
          if (pingMessage !== undefined) socket.send(pingMessage);
          socket.ping();
        }
        return next();
      });
    };
    next();
    socket.once("close", () => cancel());
  }
}

function addressedSandbox({ target }: SurfaceRequest): LiveSandbox {
  if (target === undefined) throw new SandboxError("sandbox_not_found", "the request names no sandbox");
  return target.sandbox;
}

/** Refuses what `ws` would refuse only after the route has prepared something for it. */
function checkHandshake(headers: IncomingHttpHeaders): void {
  const isKnown = ["8", "13"].includes(headers["sec-websocket-version"] ?? "");
  if (isKnown && WEBSOCKET_KEY.test(headers["sec-websocket-key"] ?? "")) return;
  throw new SandboxError("request_invalid", "Sec-WebSocket-Key or Sec-WebSocket-Version is invalid");
}

/** Codes of RFC 6455, 7.4.1. */
export const CloseCode = {
  Normal: 1000,
  GoingAway: 1001,
  InvalidData: 1007,
  InternalError: 1011,
  TryAgain: 1013,
} as const;

/**
 * Passes messages on, one after the other, as fast as `take` resolves and in turn with those of other sandboxes. One that it refuses as invalid closes the
 * WebSocket; other errors of `take` are ignored: they mean that its program has ended, which its output reports.
 */
export function takeMessages(
  socket: WebSocket,
  sandbox: LiveSandbox,
  take: (message: Buffer, isBinary: boolean) => Promise<void>,
): void {
  let last = Promise.resolve();
  let waiting = 0;
  socket.on("message", (message: Buffer, isBinary: boolean) => {
    waiting += 1;
    // Messages that were already received still arrive: at most one buffer of them.
    socket.pause();
    last = last
      .then(async () => {
        if (isTurnOver()) await laterTurn(sandbox);
        await take(message, isBinary);
      })
      .catch((error: unknown) => {
        if (error instanceof SandboxError && error.code === "invalid_argument")
          socket.close(CloseCode.InvalidData, error.message);
      })
      .finally(() => {
        waiting -= 1;
        if (waiting === 0) socket.resume();
      });
  });
}

/** Resolves when the message was handed on, or the connection is lost: its close follows. */
export function sendMessage(socket: WebSocket, data: string | Uint8Array): Promise<void> {
  return new Promise((resolve) => socket.send(data, { binary: typeof data !== "string" }, () => resolve()));
}
