import { SandboxError } from "@coppice/core";
import { ShellError, type ShellErrorCode } from "../shell/shell-error.js";
import type { ShellAnswer, ShellRequest } from "../wire/route.js";
import { errorAnswer } from "../wire/shell-errors.js";

const JAVASCRIPT: ReadonlySet<string> = new Set(["javascript", "js", "typescript", "ts"]);

/** Says that a language has no interpreter here. The status is none that clients try again for. */
export function notAvailable(language: string, why: string): ShellError {
  const name = language.trim().toLowerCase();
  const code: ShellErrorCode = JAVASCRIPT.has(name) ? "JAVASCRIPT_NOT_AVAILABLE" : "PYTHON_NOT_AVAILABLE";
  return new ShellError(code, why, { language });
}

/** @throws ShellError for what the interpreter refuses. */
export async function interpreted<T>(language: string, operation: () => Promise<T>): Promise<T> {
  try {
    return await operation();
  } catch (error) {
    throw interpreterError(error, language);
  }
}

function interpreterError(error: unknown, language: string): unknown {
  if (!(error instanceof SandboxError)) return error;
  if (error.reason === "context_not_found") return new ShellError("CONTEXT_NOT_FOUND", error.message);
  if (error.reason === "kernel_start_failed") return notAvailable(language, error.message);
  if (error.reason === "template_has_no_kernel") {
    return new ShellError("VALIDATION_FAILED", `There is no interpreter for '${language}'`, { language });
  }
  return error;
}

/** The answer to a failed execution: the interface's form, and that of older clients, `{ error, code, details }`. */
export function executionFailure(error: unknown, { log }: Pick<ShellRequest, "log">): ShellAnswer {
  const { status, body } = errorAnswer(error, log);
  return { json: { ...body, error: body["message"], details: body["context"] }, status };
}
