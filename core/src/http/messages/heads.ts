import type { IncomingMessage, ServerResponse } from "node:http";

/** The lines of a head, each with its end. @param headers names and values in turn. */
export function headerLines(headers: readonly string[]): string {
  let lines = "";
  for (let index = 0; index < headers.length; index += 2)
    lines += `${headers[index]}: ${headers[index + 1]}\r\n`;
  return lines;
}

export function hasBody({ headers }: IncomingMessage): boolean {
  return headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0;
}

const EXPOSED = [
  "connect-content-encoding",
  "connect-accept-encoding",
  "content-encoding",
  "location",
  "cache-control",
  "x-content-type-options",
].join(", ");

/** CORS headers of requests to a sandbox: any web page may send them, as at the E2B edge, because the token decides. */
export function allowAnyOrigin(response: ServerResponse): void {
  response.setHeader("access-control-allow-origin", "*");
  response.setHeader("access-control-expose-headers", EXPOSED);
}

/**
 * True for a preflight request that asks for a sandbox header. A preflight has only the names of headers, so the
 * sandbox is not known yet.
 */
export function asksToNameSandbox({ method, headers }: IncomingMessage): boolean {
  const names = headers["access-control-request-headers"]?.toLowerCase().split(",") ?? [];
  return method === "OPTIONS" && names.some((name) => name.trim() === "e2b-sandbox-id");
}

export function answerPreflight(response: ServerResponse): void {
  const asked = response.req.headers["access-control-request-headers"];
  response.writeHead(204, {
    "access-control-allow-methods": "HEAD, GET, POST, PUT, PATCH, DELETE",
    "access-control-allow-headers": asked ?? "*",
    "access-control-max-age": "7200",
  });
  response.end();
}
