import { request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import type { TargetGuard } from "@coppice/core";

export interface PostOptions {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly guard: TargetGuard;
  /** Ends the exchange at any point. */
  readonly signal: AbortSignal;
}

/** Limit of an answer's body, which is read and ignored. */
const READ_BYTES = 64 * 1024;

/**
 * Sends a body, and returns the status. Redirects are not followed: they could lead anywhere.
 * @throws Error without an answer; the message is safe to show to the tenant that registered the URL.
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
      // A new connection, which closes after the exchange.
      agent: false,
      signal,
    },
    (response) => {
      let readBytes = 0;
      response.on("data", (chunk: Buffer) => {
        readBytes += chunk.length;
        if (readBytes > READ_BYTES) response.destroy();
      });
      // The status is the answer, whether or not the body arrives.
      response.on("error", () => undefined);
      response.on("close", () => resolve(response.statusCode ?? 0));
    },
  );
  request.on("error", reject);
  request.end(body);
  return promise;
}
