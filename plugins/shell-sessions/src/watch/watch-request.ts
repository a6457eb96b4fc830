import { posix } from "node:path";
import type { WatchEvent } from "@coppice/core/backend";
import { z } from "zod";
import { pathField, sessionField } from "../files/session-path.js";

/** Names of events as clients know them. */
export const TYPES = {
  create: "create",
  write: "modify",
  remove: "delete",
  rename: "move_from",
  chmod: "attrib",
} as const satisfies Readonly<Record<WatchEvent["type"], string>>;

const patterns = z.array(z.string().min(1).max(256)).max(100);

export const watchBody = z.object({
  path: pathField,
  recursive: z.boolean().nullish(),
  events: z.array(z.enum(["create", "modify", "delete", "move_from", "move_to", "attrib"])).nullish(),
  include: patterns.nullish(),
  exclude: patterns.nullish(),
  ...sessionField,
});

type Filter = Pick<z.infer<typeof watchBody>, "events" | "include" | "exclude">;

/** What clients do not get who name neither `include` nor `exclude`. */
const NOT_SHOWN = [".git", "node_modules", ".DS_Store"];

/** The events that a request asks for. */
export function eventFilter({ events, include, exclude }: Filter): (event: WatchEvent) => boolean {
  const hidden = exclude ?? (include ? [] : NOT_SHOWN);
  return ({ name, type }) =>
    (events?.includes(TYPES[type]) ?? true) &&
    (!include?.length || isMatched(name, include)) &&
    !isMatched(name, hidden);
}

/** True when a pattern is that of the path, of one of its names, or of a directory above. */
function isMatched(path: string, all: readonly string[]): boolean {
  const names = path.split("/");
  const paths = names.map((_, index) => names.slice(0, index + 1).join("/"));
  return all.some((pattern) => [...names, ...paths].some((each) => posix.matchesGlob(each, pattern)));
}
