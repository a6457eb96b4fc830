import { SandboxError, type SandboxRecord } from "@coppice/core";

export type ListOrder = "asc" | "desc";

/** The last entry of a page: the next page starts behind it, also after changes in between. */
export type ListPosition = Pick<SandboxRecord, "startedAtMs" | "id">;

/** By start, then by id; the later, the greater. */
export function comparePositions(a: ListPosition, b: ListPosition): number {
  if (a.startedAtMs !== b.startedAtMs) return a.startedAtMs - b.startedAtMs;
  return a.id < b.id ? -1 : a.id > b.id ? 1 : 0;
}

/** A position as the opaque text that clients send back. */
export function formatCursor({ startedAtMs, id }: ListPosition, order: ListOrder): string {
  const suffix = order === "asc" ? "__asc" : "";
  return Buffer.from(`${new Date(startedAtMs).toISOString()}__${id}${suffix}`).toString("base64url");
}

/** @throws SandboxError invalid_argument for an invalid cursor, or one of the other order. */
export function parseCursor(text: string, order: ListOrder): ListPosition {
  const [time = "", id = "", suffix, ...more] = Buffer.from(text, "base64url").toString("utf8").split("__");
  const startedAtMs = Date.parse(time);
  const isOfOrder = suffix === (order === "asc" ? "asc" : undefined);
  if (Number.isNaN(startedAtMs) || !/^[a-z0-9]+$/.test(id) || !isOfOrder || more.length > 0) {
    throw new SandboxError("cursor_invalid", "Invalid next token");
  }
  return { startedAtMs, id };
}
