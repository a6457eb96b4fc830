import type { IncomingMessage, ServerResponse } from "node:http";
import type { IncomingRequest } from "../surfaces/incoming-request.js";
import type { Target } from "../surfaces/surface-request.js";
import { type ConnectionOption, type PassedRequest, passRequest } from "./pass-request.js";
import type { PortConnections } from "./port-connections.js";
import { messageOf } from "../../kernel/errors.js";
import { EdgeRefusal } from "../messages/edge-refusal.js";
import type { HttpError } from "../messages/http-error.js";
import { TRAFFIC_TOKEN_HEADER } from "../targeting/targeting.js";
import { HOP_BY_HOP } from "./answer-head.js";

const REQUEST_ID = "x-request-id";

interface ProxiedRequest {
  readonly request: Pick<IncomingRequest, "id" | "signal" | "onEnd">;
  readonly target: Target;
  readonly message: IncomingMessage;
  readonly response: ServerResponse;
}

/** Proxies an HTTP request to a port of its sandbox, streaming both ways. @throws HttpError 502 without an answer. */
export async function proxyRequest(proxied: ProxiedRequest, connections: PortConnections): Promise<void> {
  const { message, request, target } = proxied;
  const isShared = !isBoundToConnection(message);
  await passRequest(new ForPort(proxied), {
    take: () => (isShared ? connections.take(target) : undefined),
    async dial(isAgain) {
      const mayBeKept = isShared && !isAgain;
      const connection = await connections.dial(target, request.signal, mayBeKept);
      return { connection, option: mayBeKept ? "keep-alive" : "close" };
    },
  });
}

/** True for a login that applies to a whole connection (NTLM, Negotiate): a shared one would log others in, too. */
function isBoundToConnection({ headers }: IncomingMessage): boolean {
  return headers.authorization !== undefined && /^(ntlm|negotiate)\b/i.test(headers.authorization);
}

/** A request for a program. */
class ForPort implements PassedRequest {
  readonly message: IncomingMessage;
  readonly response: ServerResponse;
  readonly #request: ProxiedRequest["request"];
  readonly #target: Target;

  constructor({ message, request, response, target }: ProxiedRequest) {
    this.message = message;
    this.response = response;
    this.#request = request;
    this.#target = target;
  }

  requestHead(option: ConnectionOption): string {
    return requestHead(this.message, this.#target, `Connection: ${option}\r\n`);
  }

  answerHeaders(headers: readonly string[]): string[] {
    const id = hasName(headers, REQUEST_ID) ? [] : [REQUEST_ID, this.#request.id];
    return [...headers, ...id];
  }

  refusal(cause: unknown): unknown {
    return brokenPort(this.#target, cause);
  }

  passedBack(): void {}

  breakOff(): void {
    this.response.destroy();
  }

  onEnd(act: () => void): void {
    this.#request.onEnd(act);
  }
}

function hasName(headers: readonly string[], name: string): boolean {
  for (let index = 0; index < headers.length; index += 2) {
    if (headers[index]?.length === name.length && headers[index]?.toLowerCase() === name) return true;
  }
  return false;
}

/** The answer in place of that of a program that hung up, or whose answer is none. */
export function brokenPort({ sandbox, port }: Target, cause: unknown): HttpError {
  const message = `The sandbox is running but the connection to the port broke: ${messageOf(cause)}`;
  return new EdgeRefusal(502, {
    reason: "port_closed",
    sandboxId: sandbox.record.id,
    message,
    port,
    title: "Broken Port Error",
  });
}

/** Credentials for this server: a program in a sandbox could act as its visitors with them. */
const CREDENTIALS = ["x-api-key", "x-access-token", TRAFFIC_TOKEN_HEADER];

/** Headers that the head has not, or in another form. */
const NOT_PASSED_ON: ReadonlySet<string> = new Set([...HOP_BY_HOP, ...CREDENTIALS, "x-forwarded-for"]);

/**
 * The head of a request for a program, with the headers as its client wrote them.
 * @param connection the lines about the connection.
 */
export function requestHead(message: IncomingMessage, { sandbox, port }: Target, connection: string): string {
  const { headers, rawHeaders, socket } = message;
  const { maskRequestHost } = sandbox.record;
  const isMasked = maskRequestHost !== undefined;
  let head = `${message.method} ${message.url} HTTP/1.1\r\n`;
  for (let index = 0; index + 1 < rawHeaders.length; index += 2) {
    const name = rawHeaders[index] ?? "";
    const key = name.toLowerCase();
    if (NOT_PASSED_ON.has(key) || (isMasked && (key === "host" || key === "x-forwarded-host"))) continue;
    head += `${name}: ${rawHeaders[index + 1]}\r\n`;
  }
  if (isMasked) head += `Host: ${maskRequestHost.replaceAll("${PORT}", String(port))}\r\n`;
  // A chunked body stays chunked: Node has read it, whatever its size.
  if (headers["transfer-encoding"] !== undefined) head += "Transfer-Encoding: chunked\r\n";
  const earlier = headers["x-forwarded-for"];
  const peer = socket.remoteAddress ?? "";
  head += `X-Forwarded-For: ${earlier === undefined ? peer : `${String(earlier)}, ${peer}`}\r\n`;
  if (isMasked || headers["x-forwarded-host"] === undefined)
    head += `X-Forwarded-Host: ${headers.host ?? ""}\r\n`;
  if (headers["x-forwarded-proto"] === undefined)
    head += `X-Forwarded-Proto: ${"encrypted" in socket ? "https" : "http"}\r\n`;
  return `${head}${connection}\r\n`;
}
