import { type Gathered, mergedPage } from "@coppice/core";
import { z } from "zod";
import { comparePositions, formatCursor, type ListPosition } from "../bodies/list-cursor.js";
import type { ListPage, ListQuery } from "./list.js";

/** One sandbox of a list; the rest of it is passed on as another server wrote it. */
const listed = z.looseObject({ sandboxID: z.string(), startedAt: z.iso.datetime() });

type Listed = z.infer<typeof listed>;

export interface WholePage extends Pick<ListPage, "nextToken" | "totalRunning"> {
  readonly bodies: readonly object[];
}

/** The page of a list that all servers have a part in: each has sent its own page of the same query. */
export function wholePage(
  bodies: readonly Listed[],
  { nextToken, totalRunning }: Pick<ListPage, "nextToken" | "totalRunning">,
  answers: Gathered["answers"],
  { order, limit }: Pick<ListQuery, "order" | "limit">,
): WholePage {
  const direction = order === "asc" ? 1 : -1;
  const others = answers.flatMap(({ body }) => z.array(listed).parse(body));
  const page = mergedPage({ entries: bodies, nextToken }, answers, others, {
    limit,
    compare: (a, b) => direction * comparePositions(positionOf(a), positionOf(b)),
    tokenOf: (last) => formatCursor(positionOf(last), order),
  });
  return {
    bodies: page.entries,
    nextToken: page.nextToken,
    totalRunning:
      totalRunning === undefined
        ? undefined
        : answers.reduce((sum, { headers }) => sum + Number(headers["x-total-running"] ?? 0), totalRunning),
  };
}

function positionOf({ sandboxID: id, startedAt }: Listed): ListPosition {
  return { id, startedAtMs: Date.parse(startedAt) };
}
