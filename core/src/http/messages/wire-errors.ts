import type { IncomingHttpHeaders, ServerResponse } from "node:http";
import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import { SandboxError } from "../../kernel/errors.js";
import type { ErrorCode } from "../../kernel/reasons.js";
import type { Logger } from "../../observe/logger.js";
import { allowAnyOrigin } from "./heads.js";
import { EdgeRefusal, wantsPage } from "./edge-refusal.js";
import { HttpError } from "./http-error.js";
import { sqliteErrorCode } from "../../sqlite/open-database.js";

/** The one table from a SandboxError's code to the wire. */
export const WIRE: Readonly<Record<ErrorCode, { readonly status: number; readonly connect: Code }>> = {
  canceled: { status: 499, connect: Code.Canceled },
  unknown: { status: 500, connect: Code.Unknown },
  invalid_argument: { status: 400, connect: Code.InvalidArgument },
  deadline_exceeded: { status: 504, connect: Code.DeadlineExceeded },
  not_found: { status: 404, connect: Code.NotFound },
  already_exists: { status: 409, connect: Code.AlreadyExists },
  permission_denied: { status: 403, connect: Code.PermissionDenied },
  resource_exhausted: { status: 429, connect: Code.ResourceExhausted },
  failed_precondition: { status: 400, connect: Code.FailedPrecondition },
  aborted: { status: 409, connect: Code.Aborted },
  out_of_range: { status: 400, connect: Code.OutOfRange },
  unimplemented: { status: 501, connect: Code.Unimplemented },
  internal: { status: 500, connect: Code.Internal },
  unavailable: { status: 503, connect: Code.Unavailable },
  data_loss: { status: 500, connect: Code.DataLoss },
  unauthenticated: { status: 401, connect: Code.Unauthenticated },
};

/** Error codes of a write to a client that has left, and of the end of its request. */
function isCutOff(error: unknown): boolean {
  if (!(error instanceof Error) || !("code" in error)) return false;
  return error.code === "ECANCELED" || (error.code === "ECONNRESET" && error.message === "aborted");
}

// SQLite's codes for busy, read-only, I/O error, full.
const STORE_FAILURES = new Set([5, 8, 10, 13]);
const STORE_RETRY_AFTER_SECONDS = 5;

/** Errors of the server's own writes to a full or failing disk, which may be temporary. */
function isStoreFailure(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  return (
    (error as NodeJS.ErrnoException).code === "ENOSPC" || STORE_FAILURES.has(sqliteErrorCode(error) ?? 0)
  );
}

/** The HTTP answer to anything thrown. An unexpected error is logged once and shown as `internal error`. */
export function toHttpError(error: unknown, log: Logger): HttpError {
  if (error instanceof HttpError) return error;
  if (error instanceof SandboxError) {
    const { message, retryAfterSeconds, status = WIRE[error.code].status } = error;
    if (status === 500) log.error({ err: error }, "request failed");
    return new HttpError(status, message, { reason: error, retryAfterSeconds });
  }
  // Koa and its libraries mark client errors with a status and `expose`.
  if (error instanceof Error && "expose" in error && error.expose === true && "status" in error) {
    return new HttpError(Number(error.status), error.message, { reason: "request_invalid" });
  }
  if (isCutOff(error))
    return new HttpError(WIRE.canceled.status, "the client is gone", { reason: "client_gone" });
  log.error({ err: error }, "request failed");
  if (isStoreFailure(error)) {
    const options = { reason: "store_unavailable", retryAfterSeconds: STORE_RETRY_AFTER_SECONDS } as const;
    return new HttpError(503, "the server cannot write to its disk now", options);
  }
  return new HttpError(500, "internal error", { reason: "internal_error" });
}

export function toConnectError(error: unknown, log: Logger): ConnectError {
  if (error instanceof ConnectError) return error;
  if (error instanceof SandboxError) {
    if (WIRE[error.code].status === 500) log.error({ err: error }, "rpc failed");
    return new ConnectError(error.message, WIRE[error.code].connect, undefined, undefined, error);
  }
  if (isCutOff(error))
    return new ConnectError("the client is gone", Code.Canceled, undefined, undefined, error);
  log.error({ err: error }, "rpc failed");
  return new ConnectError("internal error", Code.Internal, undefined, undefined, error);
}

const refusals = new WeakMap<ServerResponse, HttpError["reason"]>();

/** Reason of the error that a request was answered with. */
export function refusalOf(response: ServerResponse): HttpError["reason"] | undefined {
  return refusals.get(response);
}

/** Answers an error, or destroys the connection when the answer has already begun. */
export function writeHttpError(response: ServerResponse, error: HttpError): void {
  refusals.set(response, error.reason);
  if (response.headersSent || response.destroyed) {
    response.destroy();
    return;
  }
  // A web page may read this answer like any other of a sandbox.
  if (error instanceof EdgeRefusal) allowAnyOrigin(response);
  const [type, text] = encode(error, response.req.headers);
  const bytes = Buffer.from(text);
  // E2B's JavaScript SDK shows the status line alone of an error of the code interpreter.
  if (typeof error.body === "string") response.statusMessage = phraseOf(error.body);
  response.writeHead(error.status, {
    "content-type": type,
    "content-length": bytes.length,
    ...(error.retryAfterSeconds === undefined ? {} : { "retry-after": String(error.retryAfterSeconds) }),
  });
  response.end(response.req.method === "HEAD" ? undefined : bytes);
}

const MAX_PHRASE = 400;

/** The beginning of a text as the reason phrase of a status line. */
function phraseOf(text: string): string {
  return text.slice(0, MAX_PHRASE).replaceAll(/[^\x20-\x7e]+/g, " ");
}

function encode(error: HttpError, headers: IncomingHttpHeaders): readonly [type: string, text: string] {
  const { body } = error;
  if (typeof body === "string") return ["text/plain; charset=utf-8", body];
  if (!(error instanceof EdgeRefusal)) return ["application/json", JSON.stringify(body)];
  if (wantsPage(headers)) return ["text/html; charset=utf-8", error.page];
  return ["application/json; charset=utf-8", JSON.stringify(body)];
}

export function errorInterceptor(
  logOf: (values: Parameters<ReturnType<Interceptor>>[0]["contextValues"]) => Logger,
): Interceptor {
  return (next) => async (request) => {
    const log = logOf(request.contextValues);
    try {
      const response = await next(request);
      if (!response.stream) return response;
      // An error thrown while a stream is read bypasses the catch below.
      return { ...response, message: translated(response.message, { signal: request.signal, log }) };
    } catch (error) {
      throw connectErrorOf(error, request.signal, log);
    }
  };
}

async function* translated<T>(
  messages: AsyncIterable<T>,
  { signal, log }: { readonly signal: AbortSignal; readonly log: Logger },
): AsyncGenerator<T> {
  try {
    yield* messages;
  } catch (error) {
    throw connectErrorOf(error, signal, log);
  }
}

/** The error with which an RPC is answered. @param signal of the RPC, which aborts when its client is gone. */
export function connectErrorOf(error: unknown, signal: AbortSignal, log: Logger): ConnectError {
  return toConnectError(endOf(signal, error), log);
}

/** Error with which an RPC ended. Without a client, or after its deadline, it may fail anywhere, with any message. */
function endOf({ aborted, reason }: AbortSignal, error: unknown): unknown {
  const isAborted = aborted && error instanceof Error && error.name === "AbortError";
  if (!isAborted) return error;
  return reason instanceof ConnectError ? reason : new ConnectError("the client is gone", Code.Canceled);
}
