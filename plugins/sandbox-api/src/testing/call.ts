import type { TestServer } from "@coppice/core/testing";

interface Call {
  readonly headers?: Record<string, string>;
  /** Sent as JSON unless it is a string already. */
  readonly body?: unknown;
}

/** Fields of all kinds of answers. */
export interface Answer {
  readonly code: number;
  readonly message: string;
  readonly sandboxID: string;
  readonly envdAccessToken?: string;
}

/**
 * Sends one request.
 * @returns the status, and the body if it is JSON
 */
export async function call<Body = Answer>(server: TestServer, route: string, { headers, body }: Call = {}) {
  const [method = "", path = ""] = route.split(" ");
  const response = await fetch(server.url + path, {
    method,
    headers: { ...headers },
    ...(body !== undefined && { body: typeof body === "string" ? body : JSON.stringify(body) }),
  });
  const text = await response.text();
  const isJson = response.headers.get("content-type")?.includes("application/json");
  const json = (isJson && text !== "" ? JSON.parse(text) : {}) as Body;
  return { status: response.status, headers: response.headers, text, json };
}
