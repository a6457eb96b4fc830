import { type ErrorBody, HttpError, type Logger, toHttpError } from "@coppice/core";
import { ShellError, STATUS_OF_CODE } from "../shell/shell-error.js";

interface ErrorAnswer {
  readonly status: number;
  readonly body: Readonly<Record<string, unknown>>;
}

/** Codes of refusals of the server itself, by status. Clients know what else there is as an error of the server. */
const CODE_OF_STATUS: Readonly<Partial<Record<number, string>>> = {
  400: "VALIDATION_FAILED",
  401: "PERMISSION_DENIED",
  403: "PERMISSION_DENIED",
  404: "UNKNOWN_ERROR",
  405: "UNKNOWN_ERROR",
  409: "RESOURCE_BUSY",
  410: "SESSION_DESTROYED",
  413: "VALIDATION_FAILED",
  426: "UNKNOWN_ERROR",
  429: "RESOURCE_BUSY",
};

/** The server has 503 for them, upon which clients of this interface try again for two minutes. */
const GONE: ReadonlySet<string> = new Set(["sandbox_ended", "sandbox_lost"]);

/** The answer to anything thrown, in this interface's form. What is unexpected is logged once, and told without details. */
export function errorAnswer(error: unknown, log: Logger): ErrorAnswer {
  if (error instanceof ShellError) {
    const { code, message, context } = error;
    const status = STATUS_OF_CODE[code];
    return { status, body: envelope({ code, message, context, status }) };
  }
  const { status: told, reason, message } = toHttpError(error, log);
  const status = GONE.has(reason) ? 410 : told;
  return { status, body: envelope({ code: codeOf(status, reason), message, status }) };
}

/** Body of a refusal that no route made. */
export const errorBody: ErrorBody = ({ status, reason, message }) =>
  envelope({ code: codeOf(status, reason), message, status });

/** A sandbox that is not there, or not the client's. */
export function unknownSandbox(): HttpError {
  const message = "There is no such sandbox, or the token is not its own";
  const body = envelope({ code: SANDBOX_NOT_FOUND, message, status: 404 });
  return new HttpError(404, message, { reason: "sandbox_not_found", body });
}

/** A code of this server: clients have none for it, and pass it on. */
const SANDBOX_NOT_FOUND = "SANDBOX_NOT_FOUND";

function codeOf(status: number, reason: string): string {
  if (reason === "sandbox_not_found") return SANDBOX_NOT_FOUND;
  return CODE_OF_STATUS[status] ?? "INTERNAL_ERROR";
}

function envelope(error: {
  readonly code: string;
  readonly message: string;
  readonly status: number;
  readonly context?: Readonly<Record<string, unknown>>;
}): Readonly<Record<string, unknown>> {
  const { code, message, context = {}, status } = error;
  return { code, message, context, httpStatus: status, timestamp: new Date().toISOString() };
}
