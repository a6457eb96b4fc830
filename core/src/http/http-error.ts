/**
 * An answer that the table of SandboxError codes has no row for: 413, 406, 507, a body of the
 * contract's own. For wire layers only; services throw SandboxError.
 */
export class HttpError extends Error {
  override readonly name = "HttpError";
  readonly status: number;
  /** The whole body; `{code: status, message}` when absent. A string is sent as text/plain. */
  readonly body: string | Readonly<Record<string, unknown>>;

  constructor(
    status: number,
    message: string,
    body: string | Readonly<Record<string, unknown>> = { code: status, message },
  ) {
    super(message);
    this.status = status;
    this.body = body;
  }
}
