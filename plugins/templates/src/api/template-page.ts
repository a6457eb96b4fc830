import {
  firstPage,
  type gatherAnswers,
  mergedPage,
  pageFields,
  parseInput,
  SandboxError,
} from "@coppice/core";
import { z } from "zod";
import type { TemplateBody } from "./template-body.js";

const listQuery = z.object(pageFields);

/** One template of a list, as another server wrote it. */
const listed = z.array(z.looseObject({ createdAt: z.string(), templateID: z.string() }));

/** What other servers have answered to the request of a list. */
export function listedBy(answers: Awaited<ReturnType<typeof gatherAnswers>>): readonly Position[] {
  return answers.flatMap(({ body }) => listed.parse(body));
}

export interface ListedTemplates {
  readonly configured: readonly TemplateBody[];
  readonly built: readonly TemplateBody[];
}

/** Place of the configured ones: their own date is that of a server's start, which differs. */
const LAST = new Date(0).toISOString();

/**
 * The page of `GET /v2/templates` that a query asks for, newest first, those of the configuration last.
 * @param answers the pages of the other servers.
 * @throws SandboxError invalid_argument
 */
export function templatePage(
  { configured, built }: ListedTemplates,
  query: URLSearchParams,
  answers: Awaited<ReturnType<typeof gatherAnswers>>,
): ReturnType<typeof firstPage<Position>> {
  const { limit, nextToken } = parseInput(listQuery, Object.fromEntries(query));
  const after = nextToken === "" ? undefined : readPosition(nextToken);
  const names = new Set(configured.map(({ templateID }) => templateID));
  const positionOf = ({ createdAt, templateID }: Position): Position => ({
    createdAt: names.has(templateID) ? LAST : createdAt,
    templateID,
  });
  const compare = (a: Position, b: Position): number => comparePositions(positionOf(a), positionOf(b));
  const tokenOf = (last: Position): string => {
    const { createdAt, templateID } = positionOf(last);
    return Buffer.from(`${createdAt} ${templateID}`).toString("base64url");
  };
  const left = [...configured, ...built]
    .toSorted(compare)
    .filter((one) => after === undefined || comparePositions(after, positionOf(one)) < 0);
  return mergedPage<Position>(firstPage(left, limit, tokenOf), answers, listedBy(answers), {
    limit,
    compare,
    tokenOf,
  });
}

/** Place in the order of templates. */
type Position = Pick<TemplateBody, "createdAt" | "templateID">;

function comparePositions(a: Position, b: Position): number {
  if (a.createdAt !== b.createdAt) return a.createdAt > b.createdAt ? -1 : 1;
  return a.templateID < b.templateID ? -1 : a.templateID > b.templateID ? 1 : 0;
}

function readPosition(token: string): Position {
  const text = Buffer.from(token, "base64url").toString("utf8");
  const [, createdAt, templateID] = /^(\d{4}-[\dT:.-]+Z) ([a-z0-9-_/]+)$/.exec(text) ?? [];
  if (createdAt === undefined || templateID === undefined)
    throw new SandboxError("cursor_invalid", "Invalid next token");
  return { createdAt, templateID };
}
