import type { IncomingMessage, ServerResponse } from "node:http";
import { type ConnectionOption, headerLines, type PassedRequest } from "@coppice/core";
import { ConnectStream, type Loss } from "./connect-stream.js";
import { passedBackHeaders } from "./fleet-headers.js";

/** Type of a Connect stream. */
const CONNECT_STREAM = "application/connect+";

interface RelayOptions {
  readonly message: IncomingMessage;
  readonly response: ServerResponse;
  /** Of the request: names and values in turn. */
  readonly headers: readonly string[];
  /** The error for an answer that did not come. */
  readonly refusal: (cause: unknown) => unknown;
  /** What a stream's client is told when its answer is cut. */
  readonly loss: Loss;
}

/** A request for another server. */
export class Relay implements PassedRequest {
  readonly message: IncomingMessage;
  readonly response: ServerResponse;
  readonly refusal: (cause: unknown) => unknown;
  readonly #headers: readonly string[];
  readonly #loss: Loss;
  #stream: ConnectStream | undefined;

  constructor({ message, response, headers, refusal, loss }: RelayOptions) {
    this.message = message;
    this.response = response;
    this.refusal = refusal;
    this.#headers = headers;
    this.#loss = loss;
  }

  requestHead(option: ConnectionOption): string {
    const { method, url } = this.message;
    return `${method} ${url} HTTP/1.1\r\n${headerLines([...this.#headers, "connection", option])}\r\n`;
  }

  answerHeaders(headers: readonly string[]): string[] {
    if (headers.some((text) => text.startsWith(CONNECT_STREAM))) this.#stream = new ConnectStream();
    return passedBackHeaders(headers);
  }

  passedBack(bytes: Buffer): void {
    this.#stream?.take(bytes);
  }

  breakOff(): void {
    if (this.#stream === undefined) this.response.destroy();
    else void this.#stream.breakOff(this.response, this.#loss);
  }

  onEnd(act: () => void): void {
    this.response.once("close", act);
  }
}
