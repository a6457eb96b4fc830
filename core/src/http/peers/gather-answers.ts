import type { CreationContext } from "../creations/client-creations.js";
import { firstPage, type Page } from "../messages/page.js";
import type { Gathered, Peers } from "./peers.js";

/** What all other servers answer to a request of a list. Its client is told of those that did not. */
export async function gatherAnswers(
  ctx: CreationContext,
  peers: Pick<Peers, "gather">,
): Promise<Gathered["answers"]> {
  const { answers, unreached } = await peers.gather(ctx);
  if (unreached.length > 0) ctx.res.setHeader("X-Unreached-Servers", unreached.join(", "));
  return answers;
}

export interface MergedPageOptions<T> {
  readonly limit: number;
  readonly compare: (a: T, b: T) => number;
  readonly tokenOf: (last: T) => string;
}

/**
 * The page of a list that all servers have a part in: each has sent its own page of the same query.
 * @param others of the answers of the other servers.
 */
export function mergedPage<T>(
  own: Page<T>,
  answers: Gathered["answers"],
  others: readonly T[],
  { limit, compare, tokenOf }: MergedPageOptions<T>,
): Page<T> {
  const page = firstPage([...own.entries, ...others].toSorted(compare), limit, tokenOf);
  const last = page.entries.at(-1);
  const hasMore =
    own.nextToken !== undefined || answers.some(({ headers }) => headers["x-next-token"] !== undefined);
  return hasMore && last !== undefined ? { entries: page.entries, nextToken: tokenOf(last) } : page;
}
