import { request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import type { TargetGuard } from "./target-guard.js";

export interface PostOptions {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly guard: TargetGuard;
  /** Ends the exchange at any point of it. */
  readonly signal: AbortSignal;
}

/** Nothing in an answer's body is of interest. */
const READ_BYTES = 64 * 1024;

/**
 * Sends a body. Redirects are not followed: they could lead anywhere.
 * @returns the status of the answer.
 * @throws Error when there is no answer, with a text that is fit for whoever registered the URL.
 */
export async function post({ url, headers, body, guard, signal }: PostOptions): Promise<number> {
  const { protocol, hostname } = new URL(url);
  if (!guard.permitsHost(hostname)) throw new Error("the host has no public address");
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const request = (protocol === "https:" ? requestHttps : requestHttp)(
    url,
    {
      method: "POST",
      headers: { ...headers, "content-length": String(Buffer.byteLength(body)) },
      lookup: guard.lookup,
      // A connection of its own: none outlives what it is for.
      agent: false,
      signal,
    },
    (response) => {
      let readBytes = 0;
      response.on("data", (chunk: Buffer) => {
        readBytes += chunk.length;
        if (readBytes > READ_BYTES) response.destroy();
      });
      // Whatever becomes of the body, this is the answer.
      response.on("error", () => undefined);
      response.on("close", () => resolve(response.statusCode ?? 0));
    },
  );
  request.on("error", reject);
  request.end(body);
  return promise;
}
