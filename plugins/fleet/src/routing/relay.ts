import type { IncomingMessage, ServerResponse } from "node:http";
import { type AnswerHead, type HttpConnection, type HttpExchange, sendRequest } from "@coppice/core";
import { passedBackHeaders } from "./fleet-headers.js";

interface Exchange {
  readonly message: IncomingMessage;
  readonly response: ServerResponse;
}

/** A request on its way to another server, and the answer on its way back. */
export class Relay implements HttpExchange {
  readonly method: string;
  readonly #exchange: Exchange;
  readonly #connection: HttpConnection;
  readonly #passed = Promise.withResolvers<boolean>();
  #mayRepeat = false;

  constructor(exchange: Exchange, connection: HttpConnection) {
    this.method = exchange.message.method ?? "GET";
    this.#exchange = exchange;
    this.#connection = connection;
  }

  /**
   * Resolves when the exchange is over, or the client has left.
   * @param headers names and values in turn.
   * @param mayRepeat whether the request may be sent again.
   * @returns true when the connection was dead, and it may.
   * @throws Error when there was no answer.
   */
  pass(headers: readonly string[], mayRepeat: boolean): Promise<boolean> {
    const { message, response } = this.#exchange;
    const connection = this.#connection;
    this.#mayRepeat = mayRepeat;
    connection.begin(this);
    response.once("close", () => {
      connection.abandon(this);
      this.#passed.resolve(false);
    });
    let head = `${this.method} ${message.url} HTTP/1.1\r\n`;
    for (let index = 0; index < headers.length; index += 2)
      head += `${headers[index]}: ${headers[index + 1]}\r\n`;
    sendRequest(message, `${head}connection: keep-alive\r\n\r\n`, { connection, exchange: this });
    return this.#passed.promise;
  }

  head({ status, headers }: AnswerHead, isAlone: boolean): void {
    if (status < 200) throw new Error(`the server answered with the status ${status}`);
    const { response } = this.#exchange;
    response.writeHead(status, passedBackHeaders(headers));
    // A slow body must not hold back the headers.
    if (isAlone) response.flushHeaders();
  }

  body(bytes: Buffer): void {
    const { response } = this.#exchange;
    const { stream } = this.#connection;
    if (response.write(bytes)) return;
    stream.pause();
    response.once("drain", () => {
      if (this.#connection.serves(this)) stream.resume();
    });
  }

  end(bytes: Buffer | undefined): void {
    this.#exchange.response.end(bytes);
  }

  drain(): void {
    this.#exchange.message.resume();
  }

  fail(error: unknown, isUnanswered: boolean): void {
    const { message, response } = this.#exchange;
    // Cut here, too, as the end of a sandbox is told.
    if (response.headersSent) message.socket.destroy();
    else if (isUnanswered && this.#mayRepeat) this.#passed.resolve(true);
    else this.#passed.reject(error);
  }
}
