import { parseInput, queryNumber } from "@coppice/core";
import { z } from "zod";

const MAX_PAGE = 100;

const wholeNumber = queryNumber("a number", 9);

const page = z.object({
  limit: wholeNumber.pipe(z.number().min(1).max(MAX_PAGE)).default(10),
  offset: wholeNumber.default(0),
  orderAsc: z.enum(["true", "false"], "expected true or false").default("false"),
});

export interface Page {
  readonly limit: number;
  readonly offset: number;
  readonly oldestFirst: boolean;
}

/** The page that a query asks for: by default the 10 newest entries. @throws SandboxError invalid_argument */
export function parsePage(query: URLSearchParams): Page {
  const { limit, offset, orderAsc } = parseInput(page, Object.fromEntries(query));
  return { limit, offset, oldestFirst: orderAsc === "true" };
}
