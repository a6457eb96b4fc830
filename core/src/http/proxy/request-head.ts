import type { IncomingMessage } from "node:http";
import type { Target } from "../surfaces/surface-request.js";
import { TRAFFIC_TOKEN_HEADER } from "../targeting/traffic-token.js";
import { HOP_BY_HOP } from "./answer-head.js";

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
