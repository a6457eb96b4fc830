import {
  type ClientRequest,
  request as httpRequest,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  type RequestOptions,
  type ServerResponse,
} from "node:http";
import type { Duplex } from "node:stream";
import { SandboxError } from "../kernel/errors.js";
import { EdgeRefusal } from "./edge-refusal.js";
import { HttpError } from "./http-error.js";
import { dialPort, type PortConnections } from "./port-connections.js";
import { TRAFFIC_TOKEN_HEADER } from "./traffic-token.js";
import type { SurfaceRequest, Target } from "./surface-request.js";

/** Said of the connection to the next hop only, so never passed on. */
const HOP_BY_HOP = new Set([
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

/** What may be sent again when a kept connection turns out to be dead: it has changed nothing. */
const SAFE_METHODS = new Set(["GET", "HEAD", "OPTIONS", "TRACE"]);

const LINGER_MS = 1000;

/** Passes an HTTP request on to a port of its sandbox, streaming both ways. */
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
  let ownSocket: Duplex | undefined;
  response.once("close", () => {
    // Does nothing to an exchange that is over: its connection is the pool's again.
    upstream?.destroy();
    ownSocket?.destroy();
    resolve();
  });

  const send = (connection: RequestOptions): void => {
    const sent = httpRequest({ ...options, ...connection });
    upstream = sent;
    sent.on("response", (answer) => {
      const headers = answer.rawHeaders.flatMap((name, index) =>
        index % 2 === 0 && !HOP_BY_HOP.has(name.toLowerCase())
          ? [name, answer.rawHeaders[index + 1] ?? ""]
          : [],
      );
      response.writeHead(answer.statusCode ?? 502, answer.statusMessage, headers);
      // A short answer is all here already: headers and body then leave in one write. One that takes its time
      // must not hold back its headers.
      setImmediate(() => response.flushHeaders());
      // Not stream.pipeline, here and below: its listeners are more than Node takes for a leak, and it says so
      // for each response. What breaks off is destroyed on the other side, too.
      answer.once("error", () => response.destroy());
      answer.pipe(response);
    });
    sent.once("error", (error) => {
      if (response.headersSent || request.signal.aborted) response.destroy();
      else if (sent.reusedSocket && mayRepeat) void sendAlone();
      else if (error instanceof HttpError || error instanceof SandboxError) reject(error);
      else reject(brokenUpstream(target, error));
    });
    if (!hasBody(message)) {
      sent.end();
      return;
    }
    // A program may answer before it has read anything, and a client may wait for that before it writes.
    sent.flushHeaders();
    message.pipe(sent);
  };
  /** On a connection that is this exchange's alone and goes with it. */
  const sendAlone = async (): Promise<void> => {
    try {
      const socket = await dialPort(target, request.signal);
      ownSocket = socket;
      if (request.signal.aborted) socket.destroy();
      send({ createConnection: () => socket });
    } catch (error) {
      reject(error);
    }
  };

  if (isBoundToConnection(message)) await sendAlone();
  else send({ agent: connections.agent(target.sandbox) });
  await ended;
}

/** True for a login that counts for a connection as a whole: on a shared one others would be logged in, too. */
function isBoundToConnection({ headers }: IncomingMessage): boolean {
  return /^(ntlm|negotiate)\b/i.test(headers.authorization ?? "");
}

/** Passes an upgrade (a WebSocket) on to a port of its sandbox and then moves bytes. */
export async function proxyUpgrade(
  request: SurfaceRequest,
  target: Target,
  upgrade: { readonly message: IncomingMessage; readonly socket: Duplex; readonly head: Buffer },
): Promise<void> {
  const { message, socket, head } = upgrade;
  const upstream = await dialPort(target, request.signal);
  const lines = Object.entries(passOn(message, target)).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map((one) => `${name}: ${one}\r\n`),
  );
  upstream.write(
    `${message.method} ${message.url} HTTP/1.1\r\n${lines.join("")}connection: Upgrade\r\nupgrade: ${message.headers.upgrade}\r\n\r\n`,
  );
  if (head.length > 0) upstream.write(head);
  socket.once("close", () => upstream.destroy());
  upstream.once("close", () => socket.destroy());
  // A WebSocket has no half: who does not hang up after the other did is not waited for.
  for (const side of [socket, upstream]) {
    side.once("finish", () => {
      const timer = setTimeout(() => socket.destroy(), LINGER_MS).unref();
      socket.once("close", () => clearTimeout(timer));
    });
  }
  socket.pipe(upstream);
  upstream.pipe(socket);
}

function brokenUpstream({ sandbox, port }: Target, cause: Error): HttpError {
  const message = `The sandbox is running but the connection to the port broke: ${cause.message}`;
  return new EdgeRefusal(502, { sandboxId: sandbox.record.id, message, port });
}

function hasBody({ headers }: IncomingMessage): boolean {
  return headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0;
}

function passOn(message: IncomingMessage, { sandbox, port }: Target): OutgoingHttpHeaders {
  const headers: OutgoingHttpHeaders = {};
  for (const [name, values] of Object.entries(message.headersDistinct)) {
    if (values !== undefined && !HOP_BY_HOP.has(name) && name !== TRAFFIC_TOKEN_HEADER)
      headers[name] = values.length === 1 ? (values[0] ?? "") : values;
  }
  // One chunked body stays chunked: without a length Node would send none for GET and DELETE.
  if (message.headers["transfer-encoding"] !== undefined) headers["transfer-encoding"] = "chunked";
  const peer = message.socket.remoteAddress ?? "";
  const earlier = message.headers["x-forwarded-for"];
  headers["x-forwarded-for"] = earlier === undefined ? peer : `${String(earlier)}, ${peer}`;
  const { maskRequestHost } = sandbox.record;
  if (maskRequestHost === undefined) headers["x-forwarded-host"] ??= message.headers.host ?? "";
  else {
    headers["x-forwarded-host"] = message.headers.host ?? "";
    headers["host"] = maskRequestHost.replaceAll("${PORT}", String(port));
  }
  headers["x-forwarded-proto"] ??= "encrypted" in message.socket ? "https" : "http";
  return headers;
}
