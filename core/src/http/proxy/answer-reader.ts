import { isTurnOver } from "../../kernel/turns.js";
import { type AnswerHead, parseAnswerHead } from "./answer-head.js";

/** Takes an answer piece by piece. */
export interface AnswerSink {
  /**
   * @param isAlone true when more is to come, but has not come yet.
   * @throws Error when it cannot be used.
   */
  head(head: AnswerHead, isAlone: boolean): void;
  body(bytes: Buffer): void;
  /** @param bytes the last ones of the body, if any. */
  end(bytes: Buffer | undefined): void;
}

const HEAD_END = Buffer.from("\r\n\r\n");
const LINE_FEED = 0x0a;
/** Lines between two looks at the time. */
const LINES_AT_ONCE = 64;
const CHUNK_LINE = /^([\da-f]{1,13})(?:[ \t]*;.*)?\r\n$/i;

type State = "head" | "body" | "chunk line" | "chunk" | "chunk end" | "trailers" | "complete";

/** Finds the parts of answers in the bytes of a connection. */
export class AnswerReader {
  readonly #headLimit: number;
  #method = "";
  #state: State = "complete";
  /** Bytes of an incomplete head or line. */
  #rest: Buffer | undefined;
  /** Bytes that heads, or the line of a chunk with all trailers, may still have. */
  #room = 0;
  /** Bytes of the body or the chunk that are missing; infinite for a body that ends with the connection. */
  #missing = 0;
  #head: AnswerHead | undefined;

  /** @param headLimit most bytes of the head and of the trailers, those of interim answers included. */
  constructor(headLimit: number) {
    this.#headLimit = headLimit;
  }

  get isComplete(): boolean {
    return this.#state === "complete";
  }

  /** The head of the last answer that was begun. */
  get head(): AnswerHead | undefined {
    return this.#head;
  }

  /** Expects the answer to a request. */
  begin(method: string): void {
    this.#method = method;
    this.#state = "head";
    this.#room = this.#headLimit;
    this.#rest = undefined;
  }

  /**
   * Reads on, as long as this turn of the event loop has time for it.
   * @returns how many bytes at the end of `bytes` were not read: unless the answer is complete, they are for a later turn.
   * @throws Error for an answer that is invalid.
   */
  push(bytes: Buffer, sink: AnswerSink): number {
    let all = bytes;
    if (this.#rest !== undefined) {
      all = Buffer.concat([this.#rest, bytes]);
      this.#rest = undefined;
    }
    const at = this.#state === "head" ? this.#readHead(all, sink) : 0;
    if (this.#state === "head" || this.isComplete) return all.length - at;
    return this.#state === "body" ? this.#readBody(all, at, sink) : this.#readChunks(all, at, sink);
  }

  /** Tells that no more bytes come. @throws Error when the answer is incomplete. */
  finish(sink: AnswerSink): void {
    if (this.#state !== "body" || this.#missing !== Number.POSITIVE_INFINITY)
      throw new Error("the program hung up");
    this.#state = "complete";
    sink.end(undefined);
  }

  /** @returns where the body begins. */
  #readHead(bytes: Buffer, sink: AnswerSink): number {
    for (let at = 0; ;) {
      const end = bytes.indexOf(HEAD_END, at);
      if (end < 0) {
        this.#keep(bytes.subarray(at));
        return bytes.length;
      }
      this.#use(end - at);
      const head = parseAnswerHead(bytes.toString("latin1", at, end + 2), this.#method);
      at = end + HEAD_END.length;
      // The client was told to continue by the server. Other interim answers are hints.
      if (head.status < 200 && head.status !== 101) continue;
      this.#expectBody(head);
      sink.head(head, !this.isComplete && at === bytes.length);
      if (this.isComplete) sink.end(undefined);
      return at;
    }
  }

  #expectBody(head: AnswerHead): void {
    const { body } = head;
    this.#head = head;
    this.#room = this.#headLimit;
    this.#missing = typeof body === "number" ? body : Number.POSITIVE_INFINITY;
    this.#state = body === 0 ? "complete" : body === "chunked" ? "chunk line" : "body";
  }

  #readBody(bytes: Buffer, at: number, sink: AnswerSink): number {
    const end = Math.min(bytes.length, at + this.#missing);
    this.#missing -= end - at;
    const part = bytes.subarray(at, end);
    if (this.#missing === 0) {
      this.#state = "complete";
      sink.end(part);
    } else if (part.length > 0) sink.body(part);
    return bytes.length - end;
  }

  #readChunks(bytes: Buffer, start: number, sink: AnswerSink): number {
    let at = start;
    // The parts of the body are moved together: each piece that is passed on costs a write, and new memory more.
    let from = start;
    let to = start;
    let lines = 0;
    while (at < bytes.length && !this.isComplete) {
      if (this.#state === "chunk") {
        const end = Math.min(bytes.length, at + this.#missing);
        if (to === from) from = to = at;
        else bytes.copyWithin(to, at, end);
        to += end - at;
        this.#missing -= end - at;
        at = end;
        if (this.#missing === 0) this.#state = "chunk end";
      } else {
        const end = bytes.indexOf(LINE_FEED, at) + 1;
        if (end === 0) {
          this.#keep(bytes.subarray(at));
          at = bytes.length;
          break;
        }
        this.#readLine(bytes.toString("latin1", at, end));
        at = end;
        lines += 1;
        if (lines % LINES_AT_ONCE === 0 && isTurnOver()) break;
      }
    }
    const body = to > from ? bytes.subarray(from, to) : undefined;
    if (this.isComplete) sink.end(body);
    else if (body !== undefined) sink.body(body);
    return bytes.length - at;
  }

  #readLine(line: string): void {
    if (this.#state === "chunk end") {
      if (line !== "\r\n") throw new Error("a chunk that is longer than its size");
      this.#state = "chunk line";
    } else if (this.#state === "chunk line") {
      const [, digits] = CHUNK_LINE.exec(line) ?? [];
      if (digits === undefined || line.length > this.#headLimit) throw new Error("a chunk without a size");
      this.#missing = Number.parseInt(digits, 16);
      this.#state = this.#missing === 0 ? "trailers" : "chunk";
    } else if (line === "\r\n") this.#state = "complete";
    // Trailers are not passed on.
    else this.#use(line.length);
  }

  #use(count: number): void {
    this.#requireRoom(count);
    this.#room -= count;
  }

  #keep(rest: Buffer): void {
    this.#requireRoom(rest.length);
    // A copy, for the memory of what was read may be used again.
    this.#rest = Buffer.from(rest);
  }

  #requireRoom(count: number): void {
    if (count > this.#room) throw new Error(`a head of more than ${this.#headLimit} bytes`);
  }
}
