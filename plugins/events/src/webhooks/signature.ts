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
