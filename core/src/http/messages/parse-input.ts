import type { z } from "zod";
import { SandboxError } from "../../kernel/errors.js";

/**
 * Parses a client's input by a schema.
 * @throws SandboxError invalid_argument `validation error: …` with E2B's text: the place and its problem.
 */
export function parseInput<S extends z.ZodType>(schema: S, input: unknown): z.infer<S> {
  const parsed = schema.safeParse(input);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const where = issue?.path.length ? `${issue.path.join(".")}: ` : "";
  throw new SandboxError("request_invalid", `validation error: ${where}${issue?.message ?? "invalid"}`);
}
