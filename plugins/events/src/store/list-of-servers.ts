import { gatherAnswers, type Peers, requestOf, parseInput, queryNumber } from "@coppice/core";
import { z } from "zod";

export interface ServersListOptions<T> {
  readonly peers: Pick<Peers, "gather">;
  readonly page: Page;
  /** A page of this server's own part. */
  readonly own: (page: Page) => readonly T[];
  /** An entry as another server wrote it. */
  readonly entry: z.ZodType<T>;
  /** ISO 8601. */
  readonly timeOf: (entry: T) => string;
}

/** The context of a route that lists. */
export type ListContext = Parameters<typeof gatherAnswers>[0];

/** A page of a list that all servers have a part in, each entry once. */
export async function listOfServers<T extends { readonly id: string }>(
  ctx: ListContext,
  { peers, page, own, entry, timeOf }: ServersListOptions<T>,
): Promise<readonly T[]> {
  const { isPassedOn } = requestOf(ctx);
  const answers = await gatherAnswers(ctx, peers);
  if (!isPassedOn && answers.length === 0) return own(page);
  const { offset, limit, oldestFirst } = page;
  // Of a page, any part may be with any server.
  const part = own({ ...page, offset: 0, limit: offset + limit });
  if (isPassedOn) return part;
  const all = [...part, ...answers.flatMap(({ body }) => entry.array().parse(body))];
  const direction = oldestFirst ? 1 : -1;
  return [...new Map(all.map((one) => [one.id, one])).values()]
    .toSorted((a, b) => direction * (Date.parse(timeOf(a)) - Date.parse(timeOf(b))))
    .slice(offset, offset + limit);
}

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
