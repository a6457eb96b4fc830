import { z } from "zod";
import { queryNumber } from "./query-number.js";

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
