import { messageOf } from "../../kernel/errors.js";
import { EdgeRefusal } from "../messages/edge-refusal.js";
import type { HttpError } from "../messages/http-error.js";
import type { Target } from "../surfaces/surface-request.js";

/** The answer in place of that of a program that hung up, or whose answer is none. */
export function brokenPort({ sandbox, port }: Target, cause: unknown): HttpError {
  const message = `The sandbox is running but the connection to the port broke: ${messageOf(cause)}`;
  return new EdgeRefusal(502, {
    reason: "port_closed",
    sandboxId: sandbox.record.id,
    message,
    port,
    title: "Broken Port Error",
  });
}
