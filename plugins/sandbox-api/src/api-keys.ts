import { createHash, timingSafeEqual } from "node:crypto";
import { type Guard, SandboxError } from "@coppice/core";

const E2B_KEY = /^e2b_[0-9a-f]+$/;

/** The keys of an installation, kept as digests: comparing takes the same time for every wrong key. */
export class ApiKeys {
  readonly #digests: readonly Buffer[];

  constructor(keys: readonly string[]) {
    this.#digests = keys.map(digest);
  }

  has(key: string): boolean {
    const given = digest(key);
    let isKnown = false;
    for (const known of this.#digests) isKnown = timingSafeEqual(known, given) || isKnown;
    return isKnown;
  }
}

/** Lets in who presents one of the keys in `X-API-Key`, and everybody to `/health`. Refusals are E2B's texts. */
export function apiKeyGuard(keys: ApiKeys): Guard {
  return ({ method, url, headers }) => {
    if (url.pathname === "/health" && (method === "GET" || method === "HEAD")) return;
    const key = headers["x-api-key"];
    if (typeof key !== "string" || key === "") throw refusal("authorization header is missing");
    if (keys.has(key)) return;
    throw refusal(E2B_KEY.test(key) ? "Cannot get the team for the given API key" : "Invalid API key format");
  };
}

function digest(key: string): Buffer {
  return createHash("sha256").update(key).digest();
}

function refusal(message: string): SandboxError {
  return new SandboxError("unauthenticated", message);
}
