import {
  type ClientRequest,
  request as httpRequest,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  type RequestOptions,
  ServerResponse,
} from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { messageOf, SandboxError } from "../../kernel/errors.js";
import { destroySoon } from "../messages/destroy-soon.js";
import { EdgeRefusal } from "../messages/edge-refusal.js";
import { HttpError } from "../messages/http-error.js";
import { dialPort, type PortConnections } from "./port-connections.js";
import { TRAFFIC_TOKEN_HEADER } from "../targeting/traffic-token.js";
import type { SurfaceRequest, Target } from "../surfaces/surface-request.js";

/** About the connection to the next hop, so never passed on. */
const HOP_BY_HOP: ReadonlySet<string> = new Set([
  "connection",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);

/** Credentials for this server: a program in a sandbox could act as its visitors with them. */
const CREDENTIALS: ReadonlySet<string> = new Set(["x-api-key", "x-access-token", TRAFFIC_TOKEN_HEADER]);

/** Safe methods: such a request may be sent again when a kept connection turns out to be dead. */
const SAFE_METHODS = new Set(["GET", "HEAD", "OPTIONS", "TRACE"]);

/** Limit of the bytes sent before an upgrade is answered. WebSocket clients send none. */
const EARLY_BYTES = 64 * 1024;

/** Proxies an HTTP request to a port of its sandbox, streaming both ways. */
export async function proxyRequest(
  request: SurfaceRequest,
  target: Target,
  exchange: {
    readonly message: IncomingMessage;
    readonly response: ServerResponse;
    readonly connections: PortConnections;
  },
): Promise<void> {
  const { message, response, connections } = exchange;
  const { promise: ended, resolve, reject } = Promise.withResolvers<void>();
  const options: RequestOptions = {
    port: target.port,
    method: message.method ?? "GET",
    path: message.url ?? "/",
    headers: passOn(message, target),
    setHost: false,
  };
  const mayRepeat = SAFE_METHODS.has(options.method ?? "") && !hasBody(message);

  let upstream: ClientRequest | undefined;
  response.once("close", () => {
    // Has no effect on a finished exchange: its connection is back in the pool.
    upstream?.destroy();
    resolve();
  });

  const send = (connection: RequestOptions): void => {
    const sent = httpRequest({ ...options, ...connection });
    upstream = sent;
    let answered: IncomingMessage | undefined;
    sent.on("response", (answer) => {
      answered = answer;
      try {
        passBack(answer, response);
      } catch (error) {
        sent.destroy();
        reject(brokenUpstream(target, error));
      }
    });
    // Without a listener Node ends this exchange silently.
    sent.once("upgrade", (_answer, connection) => {
      connection.destroy();
      reject(brokenUpstream(target, "the program changed the protocol unasked"));
    });
    sent.on("error", (error) => {
      // Bytes after a complete answer are not a part of it, such as a body after HEAD.
      if (answered?.complete === true) return;
      if (response.headersSent || request.signal.aborted) response.destroy();
      else if (sent.reusedSocket && mayRepeat) void sendAlone();
      else if (error instanceof HttpError || error instanceof SandboxError) reject(error);
      else reject(brokenUpstream(target, error));
    });
    if (!hasBody(message)) {
      sent.end();
      return;
    }
    // A program may answer before it reads, and a client may wait for that before it writes.
    sent.flushHeaders();
    message.pipe(sent);
  };
  /** Sends on a connection of its own, which closes afterwards. */
  const sendAlone = async (): Promise<void> => {
    try {
      const socket = await dialPort(target, request.signal);
      if (request.signal.aborted) socket.destroy();
      send({ createConnection: () => socket });
    } catch (error) {
      reject(error);
    }
  };

  if (isBoundToConnection(message)) await sendAlone();
  else send({ agent: connections(target.sandbox) });
  await ended;
}

/** True for a login that applies to a whole connection (NTLM, Negotiate): a shared one would log others in, too. */
function isBoundToConnection({ headers }: IncomingMessage): boolean {
  return /^(ntlm|negotiate)\b/i.test(headers.authorization ?? "");
}

/**
 * Proxies an upgrade (a WebSocket) to a port of its sandbox and then moves bytes. Only an answer 101 makes a tunnel.
 * After any other answer the connection is closed: a proxy in front of this server would reuse it for another client.
 */
export async function proxyUpgrade(
  request: SurfaceRequest,
  target: Target,
  upgrade: { readonly message: IncomingMessage; readonly socket: Duplex; readonly head: Buffer },
): Promise<void> {
  const { message, socket, head } = upgrade;
  const { promise: answered, resolve, reject } = Promise.withResolvers<void>();
  const upstream = await dialPort(target, request.signal);
  socket.once("close", () => {
    upstream.destroy();
    resolve();
  });
  if (socket.destroyed) upstream.destroy();
  const early = keepEarly(socket, head);
  const headers = passOn(message, target);
  const sent = httpRequest({
    port: target.port,
    method: message.method ?? "GET",
    path: message.url ?? "/",
    headers: { ...headers, Connection: "Upgrade", Upgrade: message.headers.upgrade ?? "" },
    setHost: false,
    createConnection: () => upstream,
  });
  sent.once("upgrade", (answer, _upstream, first) => {
    const lines = Array.from(rawHeadersOf(answer), ([name, value]) => `${name}: ${value}\r\n`);
    socket.write(`HTTP/1.1 101 Switching Protocols\r\n${lines.join("")}\r\n`, "latin1");
    if (first.length > 0) socket.write(first);
    for (const bytes of early.take()) upstream.write(bytes);
    tunnel(socket, upstream);
    resolve();
  });
  sent.once("response", (answer) => {
    early.take();
    const response = lastAnswer(message, socket);
    try {
      passBack(answer, response);
      resolve();
    } catch (error) {
      response.detachSocket(socket as Socket);
      reject(brokenUpstream(target, error));
    }
  });
  sent.on("error", (error) => reject(brokenUpstream(target, error)));
  sent.end();
  await answered;
}

/** Reads bytes that come before an upgrade is answered: an unread socket does not reveal that its client has left. */
function keepEarly(socket: Duplex, head: Buffer): { take(): readonly Buffer[] } {
  const kept = [head];
  let lengthBytes = head.length;
  const leave = (): void => void socket.destroy();
  const keep = (bytes: Buffer): void => {
    kept.push(bytes);
    lengthBytes += bytes.length;
    if (lengthBytes > EARLY_BYTES) leave();
  };
  socket.on("data", keep);
  socket.once("end", leave);
  const take = (): readonly Buffer[] => {
    socket.off("data", keep);
    socket.off("end", leave);
    return kept.filter(({ length }) => length > 0);
  };
  return { take };
}

function tunnel(socket: Duplex, upstream: Duplex): void {
  upstream.once("close", () => socket.destroy());
  // A WebSocket has no half-open state: a peer that does not hang up after the other is not waited for.
  for (const side of [socket, upstream]) {
    side.once("finish", () => destroySoon(socket));
  }
  socket.pipe(upstream);
  upstream.pipe(socket);
}

/** A response on the socket of a refused upgrade. The socket is closed after it. */
function lastAnswer(message: IncomingMessage, socket: Duplex): ServerResponse {
  const response = new ServerResponse(message);
  response.shouldKeepAlive = false;
  // The client may leave in the middle of it.
  response.on("error", () => undefined);
  response.assignSocket(socket as Socket);
  // Node's server no longer serves this socket, so it does not pass "drain" on to the answer.
  socket.on("drain", () => response.emit("drain"));
  socket.resume();
  response.once("finish", () => {
    socket.end();
    destroySoon(socket);
  });
  return response;
}

/**
 * Gives a program's answer to the client.
 * @throws Error for one that Node reads but refuses to write. Nothing of it has been written then.
 */
function passBack(answer: IncomingMessage, response: ServerResponse): void {
  const status = answer.statusCode ?? 0;
  if (status < 200 || status > 999) throw new Error(`the program answered with the status ${status}`);
  const headers = [...rawHeadersOf(answer)].filter(([name]) => !HOP_BY_HOP.has(name.toLowerCase())).flat();
  // Without the reason phrase: the status suffices, and Node refuses to write some phrases that it reads.
  response.writeHead(status, headers);
  // Headers and body of a short answer leave in one write. A slow answer must not hold back its headers.
  setImmediate(() => response.flushHeaders());
  // Not stream.pipeline: its listeners exceed Node's leak threshold and cause a warning per response. When one side
  // breaks off, the other one is destroyed, too.
  answer.once("error", () => response.destroy());
  answer.pipe(response);
}

function* rawHeadersOf({ rawHeaders }: IncomingMessage): Generator<readonly [name: string, value: string]> {
  for (let index = 0; index + 1 < rawHeaders.length; index += 2)
    yield [rawHeaders[index] ?? "", rawHeaders[index + 1] ?? ""];
}

function brokenUpstream({ sandbox, port }: Target, cause: unknown): HttpError {
  const message = `The sandbox is running but the connection to the port broke: ${messageOf(cause)}`;
  return new EdgeRefusal(502, { reason: "port_closed", sandboxId: sandbox.record.id, message, port });
}

function hasBody({ headers }: IncomingMessage): boolean {
  return headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0;
}

/** The headers of a request for the program, spelled as its client wrote them. */
function passOn(message: IncomingMessage, { sandbox, port }: Target): OutgoingHttpHeaders {
  const kept = new Map<string, { readonly name: string; values: string[] }>();
  const set = (name: string, value: string): void => {
    const values = [value];
    kept.set(name.toLowerCase(), { name, values });
  };
  const setUnlessSaid = (name: string, value: string): void => {
    if (!kept.has(name.toLowerCase())) set(name, value);
  };
  for (const [name, value] of rawHeadersOf(message)) {
    const key = name.toLowerCase();
    if (HOP_BY_HOP.has(key) || CREDENTIALS.has(key)) continue;
    const known = kept.get(key);
    if (known === undefined) set(name, value);
    else known.values.push(value);
  }
  // A chunked body stays chunked: without a length Node would send no body for GET and DELETE.
  if (message.headers["transfer-encoding"] !== undefined) set("Transfer-Encoding", "chunked");
  const peer = message.socket.remoteAddress ?? "";
  const earlier = message.headers["x-forwarded-for"];
  set("X-Forwarded-For", earlier === undefined ? peer : `${String(earlier)}, ${peer}`);
  const { maskRequestHost } = sandbox.record;
  if (maskRequestHost === undefined) setUnlessSaid("X-Forwarded-Host", message.headers.host ?? "");
  else {
    set("X-Forwarded-Host", message.headers.host ?? "");
    set("Host", maskRequestHost.replaceAll("${PORT}", String(port)));
  }
  setUnlessSaid("X-Forwarded-Proto", "encrypted" in message.socket ? "https" : "http");
  return Object.fromEntries(
    [...kept.values()].map(({ name, values }) => [name, values.length === 1 ? (values[0] ?? "") : values]),
  );
}
