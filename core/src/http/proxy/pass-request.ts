import type { IncomingMessage, ServerResponse } from "node:http";
import { passBodyWhole } from "../clients/paced-reads.js";
import { hasBody } from "../messages/heads.js";
import { bodyOf } from "../messages/json-body.js";
import type { AnswerHead } from "./answer-head.js";
import { isLent, releaseBlock } from "./block-reads.js";
import type { HttpConnection, HttpExchange } from "./http-connection.js";

/** What a connection is for after an exchange. */
export type ConnectionOption = "keep-alive" | "close";

/** A client's request that is for another HTTP server, and what that server makes of it. */
export interface PassedRequest {
  readonly message: IncomingMessage;
  readonly response: ServerResponse;
  /** The head of the request, with its empty line. It tells of the body what the client's did. */
  requestHead(option: ConnectionOption): string;
  /** A new list of the headers of the answer, for the client. @param headers names and values in turn. */
  answerHeaders(headers: readonly string[]): string[];
  /** The error for an answer that did not come, or is none. */
  refusal(cause: unknown): unknown;
  /** Told of each piece of the answer's body that is passed on, but for the last. */
  passedBack(bytes: Buffer): void;
  /** Ends an answer that broke off after its head. */
  breakOff(): void;
  /** Calls back when the exchange is over, or the client has left. */
  onEnd(act: () => void): void;
}

/** Connections to that server. */
export interface PassedConnections {
  /** Takes an idle one. */
  take(): HttpConnection | undefined;
  /** @param isAgain true after a kept one that was dead. */
  dial(isAgain: boolean): Promise<{ readonly connection: HttpConnection; readonly option: ConnectionOption }>;
}

/** Safe methods: such a request may be sent again when a kept connection turns out to be dead. */
const SAFE_METHODS = new Set(["GET", "HEAD", "OPTIONS", "TRACE"]);

/**
 * Passes a request on, streaming both ways. Resolves when the answer is complete, or the client has left.
 * @throws `refusal`, or what `dial` throws.
 */
export async function passRequest(passed: PassedRequest, connections: PassedConnections): Promise<void> {
  const { message, response } = passed;
  const kept = connections.take();
  if (kept !== undefined) {
    const mayRepeat = SAFE_METHODS.has(message.method ?? "") && !hasBody(message);
    const wasDead = await new ProxyExchange(passed, kept, mayRepeat).pass("keep-alive");
    if (!wasDead) return;
  }
  const { connection, option } = await connections.dial(kept !== undefined);
  if (response.destroyed) connection.stream.destroy();
  else await new ProxyExchange(passed, connection, false).pass(option);
}

/** A request on its way, and the answer on its way back. */
class ProxyExchange implements HttpExchange {
  readonly method: string;
  readonly #passed: PassedRequest;
  readonly #connection: HttpConnection;
  readonly #mayRepeat: boolean;
  readonly #over = Promise.withResolvers<boolean>();

  constructor(passed: PassedRequest, connection: HttpConnection, mayRepeat: boolean) {
    this.method = passed.message.method ?? "GET";
    this.#passed = passed;
    this.#connection = connection;
    this.#mayRepeat = mayRepeat;
  }

  /** @returns true when the connection was dead and the request may be sent again. */
  pass(option: ConnectionOption): Promise<boolean> {
    const passed = this.#passed;
    const connection = this.#connection;
    connection.begin(this);
    passed.onEnd(() => {
      connection.abandon(this);
      this.#over.resolve(false);
    });
    const head = passed.requestHead(option);
    if (hasBody(passed.message)) this.#sendWithBody(head);
    else {
      connection.sent();
      connection.stream.write(head, "latin1");
    }
    return this.#over.promise;
  }

  /** The other side may answer before it reads, and a client may wait for that before it writes. */
  #sendWithBody(head: string): void {
    const { message } = this.#passed;
    const { stream } = this.#connection;
    // Head and beginning of the body leave in one write.
    stream.cork();
    stream.write(head, "latin1");
    const body = bodyOf(message);
    if (body !== undefined) {
      if (body.length > 0) this.#sendBody(body);
      this.#endBody();
    } else {
      passBodyWhole(message);
      message.on("data", (bytes: Buffer) => {
        if (this.#connection.serves(this) && !this.#sendBody(bytes)) message.pause();
      });
      message.once("end", () => {
        if (this.#connection.serves(this)) this.#endBody();
      });
    }
    process.nextTick(() => stream.uncork());
  }

  /** @returns false when no more should follow before `drain`. */
  #sendBody(bytes: Buffer): boolean {
    const { stream } = this.#connection;
    if (!this.#isChunked) return stream.write(bytes);
    stream.write(`${bytes.length.toString(16)}\r\n`, "latin1");
    const takesMore = stream.write(bytes);
    stream.write("\r\n", "latin1");
    return takesMore;
  }

  #endBody(): void {
    this.#connection.sent();
    if (this.#isChunked) this.#connection.stream.write("0\r\n\r\n", "latin1");
  }

  get #isChunked(): boolean {
    return this.#passed.message.headers["transfer-encoding"] !== undefined;
  }

  head({ status, headers }: AnswerHead, isAlone: boolean): void {
    const { response } = this.#passed;
    if (status < 200) throw new Error(`the program answered with the status ${status}`);
    // Without the reason phrase: the status suffices, and Node refuses to write some phrases.
    response.writeHead(status, this.#passed.answerHeaders(headers));
    // A slow body must not hold back the headers.
    if (isAlone) response.flushHeaders();
  }

  body(bytes: Buffer): void {
    const { response } = this.#passed;
    this.#passed.passedBack(bytes);
    if (response.write(bytes, whenTaken(bytes))) return;
    this.#connection.pause();
    response.once("drain", () => {
      if (this.#connection.serves(this)) this.#connection.resume();
    });
  }

  end(bytes: Buffer | undefined): void {
    this.#passed.response.end(bytes, bytes && whenTaken(bytes));
    this.#over.resolve(false);
  }

  drain(): void {
    this.#passed.message.resume();
  }

  fail(error: unknown, isUnanswered: boolean): void {
    const { response } = this.#passed;
    if (response.headersSent) this.#passed.breakOff();
    else if (isUnanswered && this.#mayRepeat) this.#over.resolve(true);
    else this.#over.reject(this.#passed.refusal(error));
  }
}

/** Undefined for a piece that needs no release: most answers are small, and a callback for each costs time. */
function whenTaken(bytes: Buffer): (() => void) | undefined {
  return isLent(bytes) ? () => releaseBlock(bytes) : undefined;
}
