import type { WatchEvent } from "@coppice/core/backend";
import { z } from "zod";
import { pathField, sessionField } from "../files/session-path.js";
import { isInGlob, isNameInGlob } from "./glob.js";

/** Names of events as clients know them. */
export const TYPES = {
  create: "create",
  write: "modify",
  remove: "delete",
  rename: "move_from",
  chmod: "attrib",
} as const satisfies Readonly<Record<WatchEvent["type"], string>>;

/** Each event is compared with all of them. */
const MAX_PATTERNS_LENGTH = 2048;
const patterns = z
  .array(
    z
      .string()
      .min(1)
      .max(256)
      .regex(/^[^[\]{}]*$/, "patterns have the wildcards *, ? and ** alone"),
  )
  .max(100)
  .refine(
    (all) => all.join("").length <= MAX_PATTERNS_LENGTH,
    `the patterns have more than ${MAX_PATTERNS_LENGTH} characters`,
  );

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
  return all.some((pattern) => isInGlob(path, pattern) || names.some((name) => isNameInGlob(name, pattern)));
}
