import { createHash, type Hash } from "node:crypto";
import { setImmediate } from "node:timers/promises";
import { ENVD_PORT, SandboxError, type Sandboxes, secretEqual, type Targets } from "@coppice/core";

interface SignedFileRequest {
  readonly path: string;
  readonly operation: "read" | "write";
  readonly username: string;
  readonly signature: string;
  /** Unix seconds; undefined = the URL never expires. */
  readonly expiration: number | undefined;
}

/**
 * Reads a `/files` request with a signature in place of a token; undefined for other requests.
 * @throws SandboxError unauthenticated for parameters that the signature does not cover, invalid_argument for an
 * expiration that is no number.
 */
export function parseSignedFileRequest(method: string, url: URL): SignedFileRequest | undefined {
  const operation = fileOperation(method, url);
  const query = url.searchParams;
  const signature = query.get("signature") ?? "";
  if (operation === undefined || signature === "") return undefined;
  // Unsigned parameters must not decide whose file is meant: the alias `user`, or a second value.
  const isAmbiguous =
    query.has("user") || ["path", "username", "signature"].some((name) => query.getAll(name).length > 1);
  if (isAmbiguous) throw new SandboxError("signature_invalid", "invalid signature");
  return {
    path: query.get("path") ?? "",
    operation,
    username: query.get("username") ?? "",
    signature,
    expiration: parseExpiration(query.get("signature_expiration")),
  };
}

/** The operation of a request on a file; undefined for one that cannot be signed. */
export function fileOperation(method: string, url: URL): SignedFileRequest["operation"] | undefined {
  if (url.pathname !== "/files") return undefined;
  return method === "GET" ? "read" : method === "POST" ? "write" : undefined;
}

/**
 * Checks one request against tokens. The part before the token is hashed once: a long path must not cost its length for
 * every token.
 */
export class SignatureCheck {
  readonly #request: SignedFileRequest;
  readonly #beforeToken: Hash;

  constructor(request: SignedFileRequest) {
    this.#request = request;
    this.#beforeToken = createHash("sha256").update(
      `${request.path}:${request.operation}:${request.username}:`,
    );
  }

  /** True when this token made the signature, expired or not. */
  isMadeWith(token: string): boolean {
    return secretEqual(this.expected(token), this.#request.signature);
  }

  expected(token: string): string {
    const { expiration } = this.#request;
    const afterPath = expiration === undefined ? token : `${token}:${expiration}`;
    const digest = this.#beforeToken.copy().update(afterPath).digest("base64");
    return `v1_${digest.replace(/=+$/, "")}`;
  }

  isExpired(nowMs: number): boolean {
    const { expiration } = this.#request;
    return expiration !== undefined && expiration < Math.floor(nowMs / 1000);
  }
}

function parseExpiration(value: string | null): number | undefined {
  if (value === null || value === "") return undefined;
  if (!/^-?\d{1,15}$/.test(value))
    throw new SandboxError(
      "request_invalid",
      "Invalid format for parameter signature_expiration: expected unix seconds",
    );
  return Number(value);
}

type TargetResolver = Parameters<Targets["add"]>[0];

// A few milliseconds of hashing between turns of the event loop.
const TRIED_AT_ONCE = 1000;

/**
 * Finds the sandbox of a signed file URL that names none: with `E2B_SANDBOX_URL` the SDKs make URLs of a path and a
 * signature alone. Tokens are unique, so at most one sandbox matches, of this server or of another one.
 */
export function signatureTarget(sandboxes: Sandboxes): TargetResolver {
  return async (message, url) => {
    const signed = parseSignedFileRequest(methodOf(message), url);
    if (signed === undefined) return undefined;
    const check = new SignatureCheck(signed);
    let tried = 0;
    for (const sandbox of sandboxes.list()) {
      const { accessToken } = sandbox.record;
      if (accessToken === undefined || !sandbox.isReachable) continue;
      if (check.isMadeWith(accessToken)) return { sandbox, port: ENVD_PORT };
      tried += 1;
      if (tried % TRIED_AT_ONCE === 0) await setImmediate();
    }
    return { sandboxId: undefined, refusal: new SandboxError("signature_invalid", "invalid signature") };
  };
}

/** The method of the request, or the one that a browser's preflight asks for. */
function methodOf({ method = "", headers }: Parameters<TargetResolver>[0]): string {
  return method === "OPTIONS" ? (headers["access-control-request-method"] ?? "") : method;
}
