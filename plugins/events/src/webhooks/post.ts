import { request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import { paceAnswer, type TargetGuard } from "@coppice/core";
import { createHash, createHmac } from "node:crypto";

interface SignedMessage {
  /** The same for every attempt to deliver one event. */
  readonly id: string;
  /** Seconds since the Unix epoch. */
  readonly timestampS: number;
  readonly body: string;
  readonly secret: string;
}

const STANDARD_PREFIX = "whsec_";

/**
 * The headers that prove a message's sender. `webhook-signature`, as in Standard Webhooks, also prevents replays of old
 * messages; `e2b-signature` is checked by E2B's receivers.
 */
export function signatureHeaders({ id, timestampS, body, secret }: SignedMessage): Record<string, string> {
  const mac = createHmac("sha256", keyOf(secret)).update(`${id}.${timestampS}.${body}`).digest("base64");
  return {
    "webhook-id": id,
    "webhook-timestamp": String(timestampS),
    "webhook-signature": `v1,${mac}`,
    "e2b-signature-version": "v1",
    "e2b-signature": createHash("sha256").update(secret).update(body).digest("base64").replace(/=+$/, ""),
  };
}

function keyOf(secret: string): Buffer {
  return secret.startsWith(STANDARD_PREFIX)
    ? Buffer.from(secret.slice(STANDARD_PREFIX.length), "base64")
    : Buffer.from(secret, "utf8");
}

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
  paceAnswer(request);
  request.on("error", reject);
  request.end(body);
  return promise;
}
