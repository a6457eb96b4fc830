import { type CreationContext, gatherAnswers, type Peers, requestOf } from "@coppice/core";
import type { z } from "zod";
import type { Page } from "./parse-page.js";

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

/** A page of a list that all servers have a part in, each entry once. */
export async function listOfServers<T extends { readonly id: string }>(
  ctx: CreationContext,
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
