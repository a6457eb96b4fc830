import type { IncomingMessage, ServerResponse } from "node:http";
import { ENVELOPE, headerLines, type passRequest } from "@coppice/core";
import { passedBackHeaders } from "./fleet-headers.js";

type PassedRequest = Parameters<typeof passRequest>[0];

/** What the client of a Connect stream is told when the server that it comes from is gone. */
interface Loss {
  readonly message: string;
  /** False of a server that is there: it cut the stream itself, as it does when a sandbox is killed. */
  readonly isLost: () => Promise<boolean>;
}

/** The answer of a Connect stream, which another server may leave unfinished. */
class ConnectStream {
  readonly #head = Buffer.alloc(ENVELOPE.headBytes);
  #headLength = 0;
  /** Bytes of the message that are still to come. */
  #left = 0;
  #isOver = false;

  /**
   * Cuts the answer, or where its server is gone and no message is unfinished, ends it with `unavailable`. E2B's SDKs
   * take a cut for the end of the sandbox.
   */
  async breakOff(response: ServerResponse, { isLost, message }: Loss): Promise<void> {
    if (!this.#mayEnd || !(await isLost())) {
      response.destroy();
      return;
    }
    const error = { code: "unavailable", message };
    response.end(ENVELOPE.of(ENVELOPE.endStream, Buffer.from(JSON.stringify({ error }))));
  }

  /** Follows the answer. */
  take(bytes: Buffer): void {
    for (let at = 0; at < bytes.length;) {
      const skipped = Math.min(this.#left, bytes.length - at);
      this.#left -= skipped;
      at += skipped;
      if (this.#headLength === 0 && at + ENVELOPE.headBytes <= bytes.length) {
        this.#begin(bytes, at);
        at += ENVELOPE.headBytes;
        continue;
      }
      const taken = bytes.copy(this.#head, this.#headLength, at);
      this.#headLength += taken;
      at += taken;
      if (this.#headLength < ENVELOPE.headBytes) continue;
      this.#headLength = 0;
      this.#begin(this.#head, 0);
    }
  }

  /** True between two messages, where a last one may follow. */
  get #mayEnd(): boolean {
    return this.#headLength === 0 && this.#left === 0 && !this.#isOver;
  }

  #begin(bytes: Buffer, at: number): void {
    this.#isOver = ((bytes[at] ?? 0) & ENVELOPE.endStream) !== 0;
    this.#left = bytes.readUInt32BE(at + 1);
  }
}

/** Type of a Connect stream. */
const CONNECT_STREAM = "application/connect+";

interface RelayOptions {
  readonly message: IncomingMessage;
  readonly response: ServerResponse;
  /** Of the request: names and values in turn. */
  readonly headers: readonly string[];
  /** The line with the proof of one attempt. */
  readonly proof: () => readonly [name: string, value: string];
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
  readonly #proof: RelayOptions["proof"];
  readonly #loss: Loss;
  #stream: ConnectStream | undefined;

  constructor({ message, response, headers, proof, refusal, loss }: RelayOptions) {
    this.message = message;
    this.response = response;
    this.refusal = refusal;
    this.#headers = headers;
    this.#proof = proof;
    this.#loss = loss;
  }

  requestHead(option: Parameters<PassedRequest["requestHead"]>[0]): string {
    const { method, url } = this.message;
    return `${method} ${url} HTTP/1.1\r\n${headerLines([...this.#headers, ...this.#proof(), "connection", option])}\r\n`;
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
