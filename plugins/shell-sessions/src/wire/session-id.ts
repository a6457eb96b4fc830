import { z } from "zod";

/** Clients send it for commands that belong to no session. */
export const SESSIONLESS = "__DISABLE_SESSION__";
const DEFAULT_SESSION = "default";
const MAX_ID_LENGTH = 256;

/** Id of a session in a body; absent and empty mean the default one. */
export const sessionIdField = z
  .string()
  .max(MAX_ID_LENGTH)
  .refine((id) => id === "" || id.trim() !== "", "a session id is not blank")
  .refine((id) => !/\p{Cc}/u.test(id), "a session id has no control characters");

/** The session that a request means: its body's, else that of its headers where the route looks there. */
export function sessionIdOf(...given: readonly (string | undefined)[]): string {
  return given.find((id) => id !== undefined && id !== "") ?? DEFAULT_SESSION;
}
