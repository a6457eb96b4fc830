import { SandboxError, type TemplateFacts } from "@coppice/core";
import { parseLimit } from "../sandboxes/list.js";

export interface TemplatePage {
  readonly templates: readonly TemplateFacts[];
  /** Undefined on the last page. */
  readonly nextToken: string | undefined;
}

/** The page of `GET /v2/templates` that a query asks for. @throws SandboxError invalid_argument */
export function listTemplates(all: readonly TemplateFacts[], query: URLSearchParams): TemplatePage {
  const limit = parseLimit(query.get("limit"));
  const nextToken = query.get("nextToken") ?? "";
  const after = nextToken === "" ? "" : parseCursor(nextToken);
  const left = all.filter(({ name }) => name > after).toSorted((a, b) => (a.name < b.name ? -1 : 1));
  const templates = left.slice(0, limit);
  const last = templates.at(-1);
  const hasMore = last !== undefined && left.length > templates.length;
  return { templates, nextToken: hasMore ? Buffer.from(last.name).toString("base64url") : undefined };
}

function parseCursor(text: string): string {
  const name = Buffer.from(text, "base64url").toString("utf8");
  if (!/^[a-z0-9-_/]+$/.test(name)) throw new SandboxError("cursor_invalid", "Invalid next token");
  return name;
}
