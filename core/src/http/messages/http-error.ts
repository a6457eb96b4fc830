import { recogniseAcrossCopies } from "../../kernel/errors.js";

/**
 * An answer that the table of SandboxError codes has no row for: 413, 406, 507, a body of the
 * contract's own. For wire layers only; services throw SandboxError.
 */
export class HttpError extends Error {
  override readonly name = "HttpError";
  readonly status: number;
  /** The whole body; `{code: status, message}` when absent. A string is sent as text/plain. */
  readonly body: string | Readonly<Record<string, unknown>>;
  /** The header `Retry-After`; 1 for a 429 and a 503 that say nothing else, none for other answers. */
  readonly retryAfterSeconds: number | undefined;

  constructor(
    status: number,
    message: string,
    body: string | Readonly<Record<string, unknown>> = { code: status, message },
    { retryAfterSeconds }: { readonly retryAfterSeconds?: number | undefined } = {},
  ) {
    super(message);
    this.status = status;
    this.body = body;
    // The SDKs try again only when they are told when, in digits.
    this.retryAfterSeconds = retryAfterSeconds ?? (status === 429 || status === 503 ? 1 : undefined);
  }
}

recogniseAcrossCopies(HttpError, "http-error");
