import type { IncomingMessage } from "node:http";
import { HttpError, readBody } from "@coppice/core";
import { z } from "zod";

const EnvironmentName = z
  .string()
  .regex(/^[^=\0]+$/, "Name should be neither empty nor contain '=' or a NUL");
const EnvironmentValue = z
  .string()
  .refine(
    (value) => !value.includes("\0") && value.isWellFormed(),
    "Value should be a valid string without a NUL",
  );

/** `POST /execute`. The Python SDK sends null for absent values. */
export const executeBody = z.object({
  code: z.string(),
  context_id: z.string().nullish(),
  language: z.string().nullish(),
  env_vars: z.record(EnvironmentName, EnvironmentValue).nullish(),
});

/** `POST /contexts`. */
export const contextBody = z.object({ language: z.string().nullish(), cwd: z.string().nullish() });

/** Reads a JSON body as E2B's server does. @throws HttpError 422 with `{"detail": [...]}`, 413 past the limit. */
export async function readCodeBody<S extends z.ZodType>(
  message: IncomingMessage,
  schema: S,
  limitBytes: number,
): Promise<z.infer<S>> {
  const body = await readBody(message, limitBytes);
  let value: unknown;
  try {
    value = JSON.parse(body.toString("utf8"));
  } catch (error) {
    throw unprocessable([
      {
        type: "json_invalid",
        loc: ["body", 0],
        msg: "JSON decode error",
        input: {},
        ctx: { error: (error as Error).message },
      },
    ]);
  }
  const parsed = schema.safeParse(value, { reportInput: true });
  if (parsed.success) return parsed.data;
  throw unprocessable(
    parsed.error.issues.map((issue) => {
      const isMissing = issue.code === "invalid_type" && issue.input === undefined;
      const type = issue.code === "invalid_type" ? `${issue.expected}_type` : "value_error";
      return {
        type: isMissing ? "missing" : type,
        loc: ["body", ...issue.path],
        msg: isMissing ? "Field required" : issue.message,
        input: isMissing || issue.path.length === 0 ? {} : issue.input,
      };
    }),
  );
}

function unprocessable(detail: readonly unknown[]): HttpError {
  return new HttpError(422, "the request body is not valid", { reason: "request_invalid", body: { detail } });
}
