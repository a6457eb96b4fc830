import { parseJson } from "../json/parse-json.js";
import { errorIn, syntheticError, type ErrorEvent } from "./execution-event.js";
import type { RequestEnd } from "./kernel-request.js";
import type { KernelMessage } from "../transport/wire.js";

/** The protocol's status, and tslab's. */
const ABORTED: ReadonlySet<unknown> = new Set(["aborted", "abort"]);

/** The error that an ended request amounts to, undefined for none. */
export async function errorOf(end: RequestEnd, maxErrorBytes: number): Promise<ErrorEvent | undefined> {
  if (end.how === "died") return syntheticError("ContextRestarting", `Context was restarted${end.lacked}`);
  if (end.how === "closed") {
    const text = "Connection to the execution was closed before the execution was finished";
    return syntheticError("UnexpectedEndOfExecution", text);
  }
  if (end.reply === undefined) return syntheticError("UnexpectedEndOfExecution", "The kernel did not reply");
  const status = statusOf(end.reply);
  if (status === "error") return errorIn(end.reply.content, maxErrorBytes);
  return ABORTED.has(status) ? syntheticError("ExecutionAborted", "Execution was aborted") : undefined;
}

/** The content of a reply, `{}` where it is no JSON object. */
export function replyContent(reply: KernelMessage | undefined): Readonly<Record<string, unknown>> {
  // Only an error is ever that long, and iopub reports it, too.
  if (reply?.isChecked === true) return {};
  const content = parseJson(reply?.content.toString("utf8") ?? "{}");
  return typeof content === "object" && content !== null ? (content as Record<string, unknown>) : {};
}

/** True where the kernel aborted the request, which never ran then. */
export function isAborted(reply: KernelMessage | undefined): boolean {
  return ABORTED.has(statusOf(reply));
}

function statusOf(reply: KernelMessage | undefined): unknown {
  return replyContent(reply)["status"];
}

/** True for the reply to a cell that called `exit()`: the kernel ends right after it. */
export function asksToExit(reply: KernelMessage): boolean {
  if (reply.type !== "execute_reply" || !reply.content.includes("ask_exit")) return false;
  const { payload } = replyContent(reply);
  const asks = (entry: { readonly source?: unknown; readonly keepkernel?: unknown } | null): boolean =>
    entry?.source === "ask_exit" && entry.keepkernel !== true;
  return Array.isArray(payload) && payload.some(asks);
}
