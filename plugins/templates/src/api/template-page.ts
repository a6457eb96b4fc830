import { firstPage, type Page, pageFields, parseInput, SandboxError } from "@coppice/core";
import { z } from "zod";
import type { TemplateBody } from "./template-body.js";

const listQuery = z.object(pageFields);

/** The page of `GET /v2/templates` that a query asks for, newest first. @throws SandboxError invalid_argument */
export function templatePage(all: readonly TemplateBody[], query: URLSearchParams): Page<TemplateBody> {
  const { limit, nextToken } = parseInput(listQuery, Object.fromEntries(query));
  const after = nextToken === "" ? undefined : readPosition(nextToken);
  const left = all.toSorted(compare).filter((one) => after === undefined || compare(after, one) < 0);
  return firstPage(left, limit, ({ createdAt, templateID }) =>
    Buffer.from(`${createdAt} ${templateID}`).toString("base64url"),
  );
}

/** Place in the order of templates. */
type Position = Pick<TemplateBody, "createdAt" | "templateID">;

function compare(a: Position, b: Position): number {
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
