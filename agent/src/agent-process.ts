import { constants } from "node:os";
import { releaseMemory } from "@coppice/core";
import {
  type Exit,
  type Output,
  type OutputKeeping,
  type Process,
  SandboxError,
  type Signal,
  type TerminalSize,
} from "@coppice/core/backend";
import { Handover, SharedInput } from "./handover/handover.js";
import {
  type Channel,
  type Link,
  PayloadReader,
  PayloadWriter,
  ProtocolError,
  Reply,
  Request,
} from "./wire/frames.js";
import { CreditedQueue } from "./wire/credited-queue.js";
import { InputWindow } from "./wire/input-window.js";
import { cells } from "./wire/spawn-request.js";

/** Bytes of output that a process may write before it is read, or for one whose output is kept, confirmed. */
export const OUTPUT_WINDOW_BYTES = 262_144;
export const KEPT_WINDOW_BYTES = 2_097_152;

/** Input in pieces of this size goes through the pipe of the process itself, where it can be had. */
const LARGE_INPUT_BYTES = 131_072;

/** Output in pieces of this size is worth a release. */
const LARGE_OUTPUT_BYTES = 16_384;

export interface ProcessFacts {
  readonly pid: number;
  readonly hasInput: boolean;
  readonly hasTerminal: boolean;
  readonly label: string;
  /** Bytes of output that the agent may send before the first read. */
  readonly grantedBytes: number;
  /** Bytes of input that the agent can buffer. */
  readonly inputWindowBytes: number;
  /** Bytes of output before the first kept one, when output is kept. */
  readonly keptFrom?: number | undefined;
  /** Adds to an exit what is known about its reason. @param sinceMs when it was known first, by `performance.now()`. */
  readonly explain?: ((exit: Exit, sinceMs: number) => Exit) | undefined;
}

export class AgentProcess implements Process, Channel {
  readonly pid: number;
  /** Label of its spawn request, for servers that find it running. */
  readonly label: string;
  readonly hasTerminal: boolean;
  readonly output: AsyncIterable<Output>;
  readonly #exit = Promise.withResolvers<Exit>();
  readonly exit = this.#exit.promise;
  readonly #sinceMs = performance.now();
  readonly #explain: ProcessFacts["explain"];
  readonly #closed = Promise.withResolvers<void>();
  /** Settles when the agent has forgotten it or, after its exit, is gone. */
  readonly closed = this.#closed.promise;
  readonly keeping: OutputKeeping | undefined;
  readonly #link: Link;
  readonly #queue: CreditedQueue<Output>;
  readonly #input: InputWindow;
  readonly #handover: Handover;
  #pipe: Promise<SharedInput | undefined> | undefined;
  readonly #signals: PromiseWithResolvers<string>[] = [];
  /** Frames of kept output that were not confirmed, oldest first. */
  #unconfirmed: { readonly endsAt: number; readonly cost: number }[] = [];
  #receivedBytes = 0;
  #hasInput: boolean;
  #hasEnded = false;
  #isOutputOver = false;
  #isDiscarded = false;
  #isIterated = false;
  #isReleased = false;
  #lost: SandboxError | undefined;

  constructor(link: Link, facts: ProcessFacts) {
    this.#link = link;
    this.#explain = facts.explain;
    this.pid = facts.pid;
    this.label = facts.label;
    this.hasTerminal = facts.hasTerminal;
    this.#hasInput = facts.hasInput;
    const isKept = facts.keptFrom !== undefined;
    const windowBytes = isKept ? KEPT_WINDOW_BYTES : OUTPUT_WINDOW_BYTES;
    this.#queue = new CreditedQueue(link, windowBytes, facts.grantedBytes, isKept);
    if (facts.keptFrom !== undefined) {
      this.#receivedBytes = facts.keptFrom;
      this.keeping = {
        offset: facts.keptFrom,
        confirm: (offset) => this.#confirm(offset),
        forget: () => this.#forget(),
      };
    }
    this.#handover = new Handover(link);
    this.#input = new InputWindow((data) => link.send(Request.Input, data), facts.inputWindowBytes);
    this.output = { [Symbol.asyncIterator]: () => this.#iterate(facts.grantedBytes === 0) };
  }

  async write(data: Uint8Array): Promise<void> {
    this.#requireInput();
    const isLarge = data.byteLength >= LARGE_INPUT_BYTES && this.#link.canShare && !this.hasTerminal;
    if (isLarge) this.#pipe ??= this.#openPipe();
    const pipe = await this.#pipe;
    if (pipe === undefined) await this.#input.write(data);
    else await pipe.write(data).catch(() => this.#loseInput());
  }

  async closeInput(): Promise<void> {
    if (!this.#hasInput || this.#hasEnded || this.#lost) return;
    this.#hasInput = false;
    const pipe = await this.#pipe;
    await (pipe?.end() ?? this.#input.drainTo(Number.POSITIVE_INFINITY).catch(() => undefined));
    if (!this.#hasEnded && !this.#lost) this.#link.send(Request.InputEnd);
  }

  async kill(signal: Signal, scope: "process" | "group" = "process"): Promise<void> {
    if (this.#hasEnded) throw this.#notFound();
    if (this.#lost) throw this.#lost;
    const answer = Promise.withResolvers<string>();
    this.#signals.push(answer);
    this.#link.send(
      Request.Signal,
      new PayloadWriter()
        .u8(scope === "group" ? 1 : 0)
        .text(signal)
        .finish(),
    );
    const code = await answer.promise;
    if (code === "") return;
    if (code === "ESRCH") throw this.#notFound();
    throw new SandboxError(code === "EPERM" ? "signal_not_permitted" : "signal_invalid", `kill: ${code}`);
  }

  async resize(size: TerminalSize): Promise<void> {
    if (!this.hasTerminal) throw new SandboxError("terminal_missing", "the process has no terminal");
    if (this.#isReleased || this.#lost) return;
    this.#link.send(
      Request.Resize,
      new PayloadWriter().u16(cells(size.columns)).u16(cells(size.rows)).finish(),
    );
  }

  /** Detaches: it goes on, its output is discarded, and the agent forgets it when it ends. */
  release(): void {
    this.#isDiscarded = true;
    this.#queue.clear();
    this.#forget();
  }

  receive(type: number, payload: Buffer): void {
    const reader = new PayloadReader(payload);
    switch (type) {
      case Reply.Output:
      case Reply.ErrorOutput:
        this.#receiveOutput(type === Reply.ErrorOutput, payload);
        return;
      case Reply.OutputEnd:
        if (this.#isOutputOver) throw new ProtocolError("output ended twice");
        this.#isOutputOver = true;
        this.#queue.end();
        break;
      case Reply.Exit:
        this.#receiveExit(reader);
        break;
      case Reply.Taken:
        this.#input.taken(reader.u32());
        break;
      case Reply.InputClosed:
        this.#failInput(noInput);
        break;
      case Reply.Shared:
        this.#handover.receive(payload);
        return;
      case Reply.Signalled: {
        const answer = this.#signals.shift();
        if (answer === undefined) throw new ProtocolError("an answer to no signal");
        answer.resolve(reader.text());
        break;
      }
      default:
        throw new ProtocolError(`frame ${type} for a process`);
    }
    reader.end();
    // A process with kept output stays until the server has recorded its end.
    if (this.#hasEnded && this.#isOutputOver && this.keeping === undefined) this.#forget();
  }

  lost(reason: SandboxError, gone?: Promise<void>): void {
    this.#lost = reason;
    this.#queue.end();
    this.#failInput(() => reason);
    for (const answer of this.#signals.splice(0)) answer.reject(reason);
    // A dead agent takes its processes along; one that was closed still has them.
    if (gone !== undefined) void gone.then(() => this.#end({ signal: "SIGKILL" }));
    else if (reason.code !== "canceled") this.#end({ signal: "SIGKILL", isAssumed: true });
  }

  #receiveOutput(isError: boolean, data: Buffer): void {
    if (this.#isOutputOver) throw new ProtocolError("output after its end");
    const stream = this.hasTerminal ? "terminal" : isError ? "stderr" : "stdout";
    const cost = this.#queue.spend(data.byteLength);
    this.#receivedBytes += data.byteLength;
    if (this.keeping !== undefined) this.#unconfirmed.push({ endsAt: this.#receivedBytes, cost });
    const output = { stream, data } as const;
    const isLarge = data.byteLength >= LARGE_OUTPUT_BYTES;
    this.#queue.push(isLarge ? { ...output, release: () => releaseMemory(data) } : output, cost);
  }

  #confirm(offset: number): void {
    const open = this.#unconfirmed.findIndex(({ endsAt }) => endsAt > offset);
    const paid = this.#unconfirmed.splice(0, open === -1 ? this.#unconfirmed.length : open);
    for (const { cost } of paid) this.#queue.pay(cost);
  }

  #receiveExit(reader: PayloadReader): void {
    if (this.#hasEnded) throw new ProtocolError("a process ended twice");
    const isSignalled = reader.u8() !== 0;
    const code = reader.u8();
    const coreDumped = reader.u8() !== 0;
    const name = reader.text();
    if (!isSignalled) this.#end({ code });
    // A real-time signal has no name; a shell would report 128 and more.
    else if (!isSignal(name)) this.#end({ code: 128 + (code & 127) });
    else this.#end({ signal: name, ...(coreDumped && { coreDumped }) });
  }

  #end(exit: Exit): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#failInput(noInput);
    this.#exit.resolve(this.#explain?.(exit, this.#sinceMs) ?? exit);
    if (this.#lost) this.#closed.resolve();
  }

  #iterate(isFirstGrant: boolean): AsyncIterator<Output, undefined> {
    if (this.#isIterated) throw new TypeError("the output of a process can be iterated once");
    this.#isIterated = true;
    if (isFirstGrant && !this.#isReleased && !this.#lost) this.#queue.open();
    return {
      next: async () => {
        const value = await this.#queue.take();
        return value === undefined ? { done: true, value } : { done: false, value };
      },
      return: async () => {
        this.#discard();
        return { done: true, value: undefined };
      },
    };
  }

  #discard(): void {
    if (this.#isDiscarded) return;
    this.#isDiscarded = true;
    this.#queue.clear();
    this.#unconfirmed = [];
    if (!this.#isReleased && !this.#lost) this.#link.send(Request.Discard);
  }

  #forget(): void {
    if (this.#isReleased || this.#lost) return;
    this.#isReleased = true;
    this.#closed.resolve();
    this.#link.release();
    for (const answer of this.#signals.splice(0)) answer.reject(this.#notFound());
  }

  async #openPipe(): Promise<SharedInput | undefined> {
    // Earlier input comes first.
    await this.#input.drainTo(0);
    return SharedInput.open(this.#handover);
  }

  /** The reading end is closed, or the agent is gone. */
  #loseInput(): never {
    this.#failInput(noInput);
    throw this.#lost ?? noInput();
  }

  #failInput(failure: () => SandboxError): void {
    this.#hasInput = false;
    this.#input.fail(failure);
    this.#handover.lost();
    void this.#pipe?.then((pipe) => pipe?.destroy()).catch(() => undefined);
  }

  #requireInput(): void {
    if (this.#lost) throw this.#lost;
    if (!this.#hasInput || this.#hasEnded) throw noInput();
  }

  #notFound(): SandboxError {
    return new SandboxError("process_not_found", `process with pid ${this.pid} not found`);
  }
}

function noInput(): SandboxError {
  return new SandboxError("stdin_closed", "stdin not enabled or closed");
}

function isSignal(name: string): name is Signal {
  return Object.hasOwn(constants.signals, name);
}
