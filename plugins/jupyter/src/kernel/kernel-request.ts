import { randomUUID } from "node:crypto";
import { executionStateOf } from "./execution-state.js";
import { Handoff } from "./handoff.js";
import type { KernelMessage } from "../transport/wire.js";

export type RequestEnd =
  /** Reply and idle arrived; the reply is undefined when it got lost, for example by an interrupt. */
  | { readonly how: "finished"; readonly reply: KernelMessage | undefined }
  | { readonly how: "died" }
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
    this.#reply = message;
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

  [Symbol.dispose](): void {
    this.#open.delete(this.id);
  }

  #settle(): void {
    if (this.isIdle && (this.#reply !== undefined || this.#isInterrupted)) this.finish();
  }
}
