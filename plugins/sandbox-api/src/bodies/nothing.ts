import { z } from "zod";

/**
 * A field that may only ask for the default behaviour. Ignoring other values would leave a sandbox less confined, or
 * shorter lived, than its creator believes.
 */
export function nothing(what: string) {
  return z.unknown().optional().refine(asksForNothing, `this server does not support ${what}`);
}

function asksForNothing(value: unknown): boolean {
  if (value === undefined || value === null || value === false) return true;
  return typeof value === "object" && Object.values(value).every(asksForNothing);
}
