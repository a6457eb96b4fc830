import { randomUUID } from "node:crypto";
import { parseJson } from "../json/ascii-json.js";
import type { KernelMessage } from "../transport/wire.js";
import { type ErrorEvent, errorIn, syntheticError } from "./execution-event.js";

/** Passes items from one producer to one consumer without a buffer: the producer waits for the consumer. */
class Handoff<T> implements AsyncIterable<T> {
  #offered: { readonly item: T; readonly taken: () => void } | undefined;
  #wake: (() => void) | undefined;
  #hasEnded = false;
  #isAbandoned = false;

  /** Resolves when the consumer took the item, or stopped. */
  put(item: T): Promise<void> | undefined {
    if (this.#isAbandoned || this.#hasEnded) return undefined;
    return new Promise((taken) => {
      this.#offered = { item, taken };
      this.#wake?.();
    });
  }

  /** Ends the consumer's loop after the offered item. */
  end(): void {
    this.#hasEnded = true;
    this.#wake?.();
  }

  /** Stops both sides: the producer no longer waits, the consumer's loop ends. */
  abandon(): void {
    this.#isAbandoned = true;
    this.#offered?.taken();
    this.#offered = undefined;
    this.end();
  }

  /** Iterate once. */
  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for (;;) {
      const offered = this.#offered;
      if (offered !== undefined) {
        this.#offered = undefined;
        offered.taken();
        yield offered.item;
      } else if (this.#hasEnded) return;
      else {
        await new Promise<void>((wake) => {
          this.#wake = wake;
        });
        this.#wake = undefined;
      }
    }
  }
}

const EMPTY = Buffer.from("{}");

export type RequestEnd =
  /** Reply and idle arrived; the reply is undefined when it got lost, for example by an interrupt. */
  | { readonly how: "finished"; readonly reply: KernelMessage | undefined }
  /** `lacked`: what its sandbox lacked, as `shortageText` says it. */
  | { readonly how: "died"; readonly lacked: string }
  | { readonly how: "closed" };

/**
 * One request to a kernel: finished when its reply and its idle have both arrived, in any order. A request on control
 * only needs its reply, which must not wait behind output: the caller calls `finish` then.
 */
export class KernelRequest implements Disposable {
  readonly id: string = randomUUID();
  /** Its messages on iopub. While no reader takes one, the kernel waits. */
  readonly messages: Handoff<KernelMessage> = new Handoff();
  readonly #done = Promise.withResolvers<RequestEnd>();
  readonly done: Promise<RequestEnd> = this.#done.promise;
  isDone = false;
  /** True once the kernel has reported that its code runs. */
  hasBegun = false;
  isIdle = false;
  readonly #open: Map<string, KernelRequest>;
  #reply: KernelMessage | undefined;
  #isInterrupted = false;

  /** @param open requests of the kernel by their ids, from which this one is removed when it is disposed of. */
  constructor(open: Map<string, KernelRequest>) {
    this.#open = open;
  }

  get isAnswered(): boolean {
    return this.#reply !== undefined;
  }

  /** Takes an iopub message of this request; a promise while the reader is busy. */
  publish(message: KernelMessage): Promise<void> | undefined {
    if (message.type === "status") {
      if (executionStateOf(message) === "idle") {
        this.isIdle = true;
        this.#settle();
      }
      return undefined;
    }
    if (message.type === "execute_input") this.hasBegun = true;
    return this.messages.put(message);
  }

  reply(message: KernelMessage): void {
    // It is kept until the end. Of a long content nothing is read: see `replyContent`.
    const content = message.isChecked === true ? EMPTY : message.content;
    this.#reply = { ...message, content, buffers: [] };
    this.#settle();
  }

  /** From here on idle alone ends it: an interrupt between the cell and its reply loses the reply. */
  interrupted(): void {
    this.#isInterrupted = true;
    this.#settle();
  }

  end(end: RequestEnd): void {
    if (this.isDone) return;
    this.isDone = true;
    this.#done.resolve(end);
    this.messages.end();
  }

  /** Ends it with the messages so far. */
  finish(): void {
    this.end({ how: "finished", reply: this.#reply });
  }

  /** Nothing more of it is awaited. */
  [Symbol.dispose](): void {
    this.#open.delete(this.id);
    this.finish();
  }

  #settle(): void {
    if (this.isIdle && (this.#reply !== undefined || this.#isInterrupted)) this.finish();
  }
}

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

const EXECUTION_STATE = /^\s*\{\s*"execution_state"\s*:\s*"(busy|idle)"\s*\}\s*$/;

/** State of a `status` message; undefined for other messages and for states without a request. */
export function executionStateOf({ type, content }: KernelMessage): "busy" | "idle" | undefined {
  if (type !== "status" || content.length >= 256) return undefined;
  return EXECUTION_STATE.exec(content.toString("latin1"))?.[1] as "busy" | "idle" | undefined;
}
