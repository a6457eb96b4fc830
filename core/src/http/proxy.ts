import {
  request as httpRequest,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  type ServerResponse,
} from "node:http";
import type { Duplex } from "node:stream";
import { pipeline } from "node:stream";
import { setTimeout as pause } from "node:timers/promises";
import { SandboxError } from "../kernel/errors.js";
import { HttpError } from "./http-error.js";
import type { SurfaceRequest, Target } from "./surface-request.js";

/** A program that is just starting gets this many milliseconds, dial by dial, until it listens. */
const DIAL_PAUSES_MS = [100, 200, 300, 400];

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

/** Passes an HTTP request on to a port of its sandbox, streaming both ways. */
export async function proxyRequest(
  request: SurfaceRequest,
  target: Target,
  message: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const socket = await dial(target, request.signal);
  const { promise: ended, resolve, reject } = Promise.withResolvers<void>();
  const upstream = httpRequest({
    createConnection: () => socket,
    method: message.method,
    path: message.url,
    headers: passOn(message),
    setHost: false,
  });
  // Node reuses sockets by an agent only; this one is ours and goes with the exchange.
  response.once("close", () => {
    upstream.destroy();
    socket.destroy();
    resolve();
  });
  upstream.on("response", (answer) => {
    const headers = answer.rawHeaders.flatMap((name, index) =>
      index % 2 === 0 && !HOP_BY_HOP.has(name.toLowerCase())
        ? [name, answer.rawHeaders[index + 1] ?? ""]
        : [],
    );
    response.writeHead(answer.statusCode ?? 502, answer.statusMessage, headers);
    response.flushHeaders();
    pipeline(answer, response, () => undefined);
  });
  upstream.once("error", (error) => {
    if (response.headersSent || request.signal.aborted) response.destroy();
    else reject(brokenUpstream(target, error));
  });
  // A program may answer before it has read anything, and a client may wait for that before it writes.
  if (hasBody(message)) upstream.flushHeaders();
  pipeline(message, upstream, () => undefined);
  await ended;
}

/** Passes an upgrade (a WebSocket) on to a port of its sandbox and then moves bytes. */
export async function proxyUpgrade(
  request: SurfaceRequest,
  target: Target,
  upgrade: { readonly message: IncomingMessage; readonly socket: Duplex; readonly head: Buffer },
): Promise<void> {
  const { message, socket, head } = upgrade;
  const upstream = await dial(target, request.signal);
  const lines = Object.entries(passOn(message)).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map((one) => `${name}: ${one}\r\n`),
  );
  upstream.write(
    `${message.method} ${message.url} HTTP/1.1\r\n${lines.join("")}connection: Upgrade\r\nupgrade: ${message.headers.upgrade}\r\n\r\n`,
  );
  if (head.length > 0) upstream.write(head);
  socket.once("close", () => upstream.destroy());
  upstream.once("close", () => socket.destroy());
  pipeline(socket, upstream, () => undefined);
  pipeline(upstream, socket, () => undefined);
}

async function dial(target: Target, signal: AbortSignal): Promise<Duplex> {
  const { sandbox, port } = target;
  for (const pauseMs of [...DIAL_PAUSES_MS, undefined]) {
    try {
      const socket = await sandbox.runtime.dial(port, signal);
      // Whoever uses it listens too; without this an error between two users would end the server.
      socket.on("error", () => undefined);
      return socket;
    } catch (error) {
      const isClosedPort = error instanceof SandboxError && error.code === "failed_precondition";
      if (!isClosedPort) throw error;
      if (pauseMs !== undefined) await pause(pauseMs, undefined, { signal });
    }
  }
  throw new HttpError(502, "port is not open", {
    sandboxId: sandbox.record.id,
    message: "The sandbox is running but port is not open",
    port,
    code: 502,
  });
}

function brokenUpstream({ sandbox, port }: Target, cause: Error): HttpError {
  const message = `The sandbox is running but the connection to the port broke: ${cause.message}`;
  return new HttpError(502, message, { sandboxId: sandbox.record.id, message, port, code: 502 });
}

function hasBody({ headers }: IncomingMessage): boolean {
  return headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0;
}

function passOn(message: IncomingMessage): OutgoingHttpHeaders {
  const headers: OutgoingHttpHeaders = {};
  for (const [name, values] of Object.entries(message.headersDistinct)) {
    if (values !== undefined && !HOP_BY_HOP.has(name))
      headers[name] = values.length === 1 ? (values[0] ?? "") : values;
  }
  // One chunked body stays chunked: without a length Node would send none for GET and DELETE.
  if (message.headers["transfer-encoding"] !== undefined) headers["transfer-encoding"] = "chunked";
  const peer = message.socket.remoteAddress ?? "";
  const earlier = message.headers["x-forwarded-for"];
  headers["x-forwarded-for"] = earlier === undefined ? peer : `${String(earlier)}, ${peer}`;
  headers["x-forwarded-host"] ??= message.headers.host ?? "";
  headers["x-forwarded-proto"] ??= "encrypted" in message.socket ? "https" : "http";
  return headers;
}
