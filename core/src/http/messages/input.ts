import { z } from "zod";
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

/** A whole number from 0 on in a query, as text. @param what completes "expected …". @param digits most of them. */
export function queryNumber(what = "a number", digits = 15) {
  return z
    .string()
    .regex(new RegExp(`^\\d{1,${digits}}$`), `expected ${what}`)
    .transform(Number);
}

const MAX_PAGE = 100;
const WORDS = `1 to ${MAX_PAGE}`;

/** Fields that the queries of all lists have. */
export const pageFields = {
  limit: queryNumber(WORDS, 9)
    .pipe(z.number(`expected ${WORDS}`).min(1, `expected ${WORDS}`).max(MAX_PAGE, `expected ${WORDS}`))
    .default(MAX_PAGE),
  nextToken: z.string().default(""),
};

export interface Page<T> {
  readonly entries: readonly T[];
  /** Undefined on the last page. */
  readonly nextToken: string | undefined;
}

/** The first page of entries. @param tokenOf makes the token that stands for the entries behind one. */
export function firstPage<T>(left: readonly T[], limit: number, tokenOf: (last: T) => string): Page<T> {
  const entries = left.slice(0, limit);
  const last = entries.at(-1);
  const hasMore = last !== undefined && left.length > entries.length;
  return { entries, nextToken: hasMore ? tokenOf(last) : undefined };
}

/**
 * Schema of variables for programs. Those that execve would refuse are refused here, with an explanation.
 * @param limitBytes bytes of one variable, `name=value`.
 */
export function environmentVariables(limitBytes: number) {
  return z.record(z.string(), z.string()).superRefine((variables, context) => {
    for (const [name, value] of Object.entries(variables)) {
      const refuse = (message: string): void => context.addIssue({ code: "custom", message, path: [name] });
      if (name === "" || /[=\0]/.test(name))
        refuse("a variable's name is not empty and has no '=' or NUL in it");
      else if (value.includes("\0")) refuse("a variable has no NUL in it");
      // "=" and the closing NUL count, too.
      else if (Buffer.byteLength(name) + Buffer.byteLength(value) + 2 > limitBytes) {
        refuse(`a variable is no longer than ${limitBytes} bytes`);
      }
    }
  });
}
