import type { Duplex } from "node:stream";
import { ReadsInTurns } from "../../kernel/reads-in-turns.js";
import { isTurnOver, type Sender } from "../../kernel/turns.js";
import { AnswerReader, type AnswerSink } from "./answer-reader.js";

/** A request that is under way, and who waits for its answer. */
export interface HttpExchange extends AnswerSink {
  readonly method: string;
  /** More of the request may be written. */
  drain(): void;
  /** @param isUnanswered true when no byte of an answer has come. */
  fail(error: unknown, isUnanswered: boolean): void;
}

interface HttpConnectionOptions {
  readonly stream: Duplex;
  /** Whose program answers. */
  readonly sender: Sender;
  readonly headLimit: number;
  /** Takes it back for the next exchange; undefined for a connection of one exchange. */
  readonly keep: ((connection: HttpConnection) => void) | undefined;
  readonly onClose: (connection: HttpConnection) => void;
}

/**
 * A connection to an HTTP server, for one exchange at a time. Its listeners stay from one to the next. Bytes
 * between two exchanges belong to neither, so they end it.
 */
export class HttpConnection {
  readonly stream: Duplex;
  readonly #reader: AnswerReader;
  readonly #reads: ReadsInTurns;
  readonly #keep: HttpConnectionOptions["keep"];
  #exchange: HttpExchange | undefined;
  #isUnanswered = true;
  #isSent = false;
  #hasEnded = false;
  #idle: NodeJS.Timeout | undefined;

  constructor({ stream, sender, headLimit, keep, onClose }: HttpConnectionOptions) {
    this.stream = stream;
    this.#reader = new AnswerReader(headLimit);
    this.#keep = keep;
    this.#reads = new ReadsInTurns({
      sender,
      source: stream,
      read: (bytes) => this.#read(bytes),
      onEnd: () => this.#finish(),
      isReused: true,
    });
    stream.on("data", (bytes: Buffer) => this.#receive(bytes));
    stream.on("drain", () => this.#exchange?.drain());
    stream.on("end", () => {
      this.#hasEnded = true;
      this.#reads.end();
    });
    stream.on("error", (error) => this.#fail(error));
    stream.once("close", () => {
      clearTimeout(this.#idle);
      onClose(this);
      this.#fail(new Error("the program hung up"));
    });
  }

  /** Begins an exchange. The caller writes the request to `stream`. */
  begin(exchange: HttpExchange): void {
    this.#exchange = exchange;
    this.#isUnanswered = true;
    this.#isSent = false;
    this.#reader.begin(exchange.method);
  }

  /** True while that exchange is under way. */
  serves(exchange: HttpExchange): boolean {
    return this.#exchange === exchange;
  }

  /** Notes that the request is complete. */
  sent(): void {
    this.#isSent = true;
  }

  /** Has the other side wait, until `resume`, with what follows of its answer. */
  pause(): void {
    this.#reads.pause();
  }

  resume(): void {
    this.#reads.resume();
  }

  /** Closes the connection if that exchange is under way, without a word to it. */
  abandon(exchange: HttpExchange): void {
    if (this.#exchange !== exchange) return;
    this.#exchange = undefined;
    this.stream.destroy();
  }

  /** Waits for `begin`, for a time. */
  waitFor(idleTimeoutMs: number): void {
    if (this.stream.isPaused()) this.#reads.resume();
    // It goes on during exchanges: to start one timer again costs less than to make one each time.
    this.#idle ??= setTimeout(() => {
      if (this.#exchange === undefined) this.stream.destroy();
    }, idleTimeoutMs).unref();
    this.#idle.refresh();
  }

  #receive(bytes: Buffer): void {
    // Heads take longer than anything else of their length.
    if (this.#exchange === undefined) this.stream.destroy();
    else this.#reads.receive(bytes, this.#isUnanswered && isTurnOver());
  }

  #read(bytes: Buffer): number {
    const exchange = this.#exchange;
    if (exchange === undefined) return 0;
    this.#isUnanswered = false;
    try {
      const left = this.#reader.push(bytes, exchange);
      if (!this.#reader.isComplete) return left;
      this.#complete(left === 0 && this.#reader.head?.isKept === true);
    } catch (error) {
      this.#fail(error);
    }
    return 0;
  }

  #complete(mayBeKept: boolean): void {
    this.#exchange = undefined;
    if (mayBeKept && this.#isSent && !this.#hasEnded && this.#keep !== undefined) this.#keep(this);
    else this.stream.destroy();
  }

  #finish(): void {
    const exchange = this.#exchange;
    if (exchange === undefined) {
      this.stream.destroy();
      return;
    }
    try {
      this.#reader.finish(exchange);
      // In a tunnel the client may have last words.
      if (this.#reader.head?.isUpgrade !== true) this.#complete(false);
    } catch (error) {
      this.#fail(error);
    }
  }

  #fail(error: unknown): void {
    const exchange = this.#exchange;
    this.#exchange = undefined;
    this.stream.destroy();
    exchange?.fail(error, this.#isUnanswered);
  }
}

export interface IdleConnectionsOptions {
  /** Time that an idle connection waits for its next request. */
  readonly idleTimeoutMs: number;
  /** Most idle connections. */
  readonly maxIdle: number;
}

/** Connections to one server that wait for their next request. */
export class IdleConnections {
  readonly #options: IdleConnectionsOptions;
  readonly #waiting: HttpConnection[] = [];

  constructor(options: IdleConnectionsOptions) {
    this.#options = options;
  }

  /** Takes the one that waited for the shortest time. */
  take(): HttpConnection | undefined {
    return this.#waiting.pop();
  }

  /** Takes a connection back after its exchange. */
  keep(connection: HttpConnection): void {
    if (this.#waiting.length >= this.#options.maxIdle) {
      connection.stream.destroy();
      return;
    }
    this.#waiting.push(connection);
    connection.waitFor(this.#options.idleTimeoutMs);
  }

  /** Leaves out a connection that was closed. */
  forget(connection: HttpConnection): void {
    const at = this.#waiting.indexOf(connection);
    if (at >= 0) this.#waiting.splice(at, 1);
  }

  get isEmpty(): boolean {
    return this.#waiting.length === 0;
  }

  close(): void {
    for (const { stream } of this.#waiting) stream.destroy();
  }
}
