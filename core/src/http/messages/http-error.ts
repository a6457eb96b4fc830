import { recogniseAcrossCopies } from "../../kernel/errors.js";

/**
 * An answer outside of the table of SandboxError codes: 413, 406, 507, a body that the contract prescribes. For wire
 * layers only; services throw SandboxError.
 */
export class HttpError extends Error {
  override readonly name = "HttpError";
  readonly status: number;
  /** The whole body; `{code: status, message}` when absent. A string is sent as text/plain. */
  readonly body: string | Readonly<Record<string, unknown>>;
  /** The header `Retry-After`; by default 1 for 429 and 503, none for other answers. */
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
    // The SDKs retry only when the header is there, in digits.
    this.retryAfterSeconds = retryAfterSeconds ?? (status === 429 || status === 503 ? 1 : undefined);
  }
}

recogniseAcrossCopies(HttpError, "http-error");
