import type { DeclaredReason, PluginReason, Reason } from "../../kernel/reasons.js";

export interface HttpErrorOptions {
  readonly reason: Reason | PluginReason["reason"] | Pick<DeclaredReason, "reason">;
  /** The whole body; `{code: status, message}` when absent. A string is sent as text/plain. */
  readonly body?: HttpError["body"];
  readonly retryAfterSeconds?: number | undefined;
}

/**
 * An answer whose body or status is not that of its reason: a body of the contract's own. For wire layers only;
 * services throw SandboxError.
 */
export class HttpError extends Error {
  override readonly name = "HttpError";
  readonly status: number;
  readonly reason: string;
  readonly body: string | Readonly<Record<string, unknown>>;
  /** The header `Retry-After`; by default 1 for 429 and 503, none for other answers. */
  readonly retryAfterSeconds: number | undefined;

  constructor(status: number, message: string, { reason, body, retryAfterSeconds }: HttpErrorOptions) {
    super(message);
    this.status = status;
    this.reason = typeof reason === "string" ? reason : reason.reason;
    this.body = body ?? { code: status, message };
    // The SDKs retry only when the header is there, in digits.
    this.retryAfterSeconds = retryAfterSeconds ?? (status === 429 || status === 503 ? 1 : undefined);
  }
}

export function withBody(error: HttpError, body: HttpError["body"]): HttpError {
  const { status, message, retryAfterSeconds } = error;
  return new HttpError(status, message, { reason: error, retryAfterSeconds, body });
}

/** The same answer with its reason in the body, which has to be JSON. */
export function withReason(error: HttpError): HttpError {
  const { reason, body } = error;
  // The bodies of `EdgeRefusal` are E2B's.
  if (typeof body === "string" || "sandboxId" in body) return error;
  return withBody(error, { ...body, reason });
}
