import { z } from "zod";
import { ShellError } from "../shell/shell-error.js";
import { sessionIdField, sessionIdOf, type ShellRequest } from "../wire/route.js";

const MAX_PATH_LENGTH = 4096;
// Linux's PATH_MAX and NAME_MAX, without the NUL.
const MAX_PATH_BYTES = 4095;
const MAX_NAME_BYTES = 255;

export const pathField = z
  .string()
  .min(1, "the path is empty")
  .max(MAX_PATH_LENGTH, `the path has more than ${MAX_PATH_LENGTH} characters`)
  .refine((path) => !path.includes("\0"), "the path has a NUL byte");

/** Fields of all requests about files. Their session is the body's alone. */
export const sessionField = { sessionId: sessionIdField.nullish() };

/**
 * The absolute form of a path: relative ones begin where the session's shell was last seen. Nothing is waited for.
 * @throws ShellError NAME_TOO_LONG
 */
export function pathOf(path: string, { sessionId }: BodySession, { sessions }: SessionsOf): string {
  const absolute = path.startsWith("/")
    ? path
    : `${sessions.get(sessionIdOf(sessionId ?? undefined)).cwd.replace(/\/$/, "")}/${path}`;
  const isTooLong =
    Buffer.byteLength(absolute) > MAX_PATH_BYTES ||
    absolute.split("/").some((name) => Buffer.byteLength(name) > MAX_NAME_BYTES);
  if (isTooLong) throw new ShellError("NAME_TOO_LONG", "The path, or a name in it, is too long", { path });
  return absolute;
}

type BodySession = { readonly sessionId?: string | null | undefined };
type SessionsOf = Pick<ShellRequest, "sessions">;
