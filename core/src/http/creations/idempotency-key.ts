import { SandboxError } from "../../kernel/errors.js";

const KEY = /^[\x21-\x7e]{1,255}$/;

/** The value of the header `Idempotency-Key`. @throws SandboxError invalid_argument for an invalid one. */
export function parseIdempotencyKey(value: string | readonly string[] | undefined): string | undefined {
  if (value === undefined) return undefined;
  if (typeof value === "string" && KEY.test(value)) return value;
  throw new SandboxError("request_invalid", "Idempotency-Key: expected 1 to 255 printable characters");
}
