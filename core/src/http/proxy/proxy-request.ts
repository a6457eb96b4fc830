import type { IncomingMessage, ServerResponse } from "node:http";
import { hasBody } from "../messages/has-body.js";
import type { IncomingRequest } from "../surfaces/incoming-request.js";
import type { Target } from "../surfaces/surface-request.js";
import type { AnswerHead } from "./answer-head.js";
import { brokenPort } from "./broken-port.js";
import type { HttpConnection, HttpExchange } from "./http-connection.js";
import type { PortConnections } from "./port-connections.js";
import { requestHead } from "./request-head.js";
import { sendRequest } from "./send-request.js";

/** Safe methods: such a request may be sent again when a kept connection turns out to be dead. */
export const SAFE_METHODS: ReadonlySet<string> = new Set(["GET", "HEAD", "OPTIONS", "TRACE"]);
const REQUEST_ID = "x-request-id";

interface ProxiedRequest {
  readonly request: Pick<IncomingRequest, "id" | "signal" | "onEnd">;
  readonly target: Target;
  readonly message: IncomingMessage;
  readonly response: ServerResponse;
}

/** Proxies an HTTP request to a port of its sandbox, streaming both ways. */
export async function proxyRequest(proxied: ProxiedRequest, connections: PortConnections): Promise<void> {
  const { message, request, target } = proxied;
  const isShared = !isBoundToConnection(message);
  const kept = isShared ? connections.take(target) : undefined;
  if (kept !== undefined) {
    const mayRepeat = SAFE_METHODS.has(message.method ?? "") && !hasBody(message);
    const wasDead = await new Passage(proxied, kept, "keep-alive").pass(mayRepeat);
    if (!wasDead) return;
  }
  const mayBeKept = isShared && kept === undefined;
  const connection = await connections.dial(target, request.signal, mayBeKept);
  await new Passage(proxied, connection, mayBeKept ? "keep-alive" : "close").pass(false);
}

/** True for a login that applies to a whole connection (NTLM, Negotiate): a shared one would log others in, too. */
function isBoundToConnection({ headers }: IncomingMessage): boolean {
  return headers.authorization !== undefined && /^(ntlm|negotiate)\b/i.test(headers.authorization);
}

/** A request on its way to a program, and the answer on its way back. */
class Passage implements HttpExchange {
  readonly method: string;
  readonly #proxied: ProxiedRequest;
  readonly #connection: HttpConnection;
  readonly #option: "keep-alive" | "close";
  readonly #passed = Promise.withResolvers<boolean>();
  #mayRepeat = false;

  constructor(proxied: ProxiedRequest, connection: HttpConnection, option: "keep-alive" | "close") {
    this.method = proxied.message.method ?? "GET";
    this.#proxied = proxied;
    this.#connection = connection;
    this.#option = option;
  }

  /**
   * Resolves when the answer is complete, or the client has left.
   * @returns true when the connection was dead and the request may be sent again.
   * @throws HttpError 502 for an answer that is none.
   */
  pass(mayRepeat: boolean): Promise<boolean> {
    const { message, request, target } = this.#proxied;
    const connection = this.#connection;
    this.#mayRepeat = mayRepeat;
    connection.begin(this);
    request.onEnd(() => {
      connection.abandon(this);
      this.#passed.resolve(false);
    });
    const head = requestHead(message, target, `Connection: ${this.#option}\r\n`);
    sendRequest(message, head, { connection, exchange: this });
    return this.#passed.promise;
  }

  head({ status, headers }: AnswerHead, isAlone: boolean): void {
    const { request, response } = this.#proxied;
    if (status < 200) throw new Error(`the program answered with the status ${status}`);
    const id = hasName(headers, REQUEST_ID) ? [] : [REQUEST_ID, request.id];
    // Without the reason phrase: the status suffices, and Node refuses to write some phrases.
    response.writeHead(status, [...headers, ...id]);
    // A slow body must not hold back the headers.
    if (isAlone) response.flushHeaders();
  }

  body(bytes: Buffer): void {
    const { response } = this.#proxied;
    if (response.write(bytes)) return;
    this.#connection.stream.pause();
    response.once("drain", () => {
      if (this.#connection.serves(this)) this.#connection.stream.resume();
    });
  }

  end(bytes: Buffer | undefined): void {
    this.#proxied.response.end(bytes);
    this.#passed.resolve(false);
  }

  drain(): void {
    this.#proxied.message.resume();
  }

  fail(error: unknown, isUnanswered: boolean): void {
    const { response, target } = this.#proxied;
    if (response.headersSent) response.destroy();
    else if (isUnanswered && this.#mayRepeat) this.#passed.resolve(true);
    else this.#passed.reject(brokenPort(target, error));
  }
}

function hasName(headers: readonly string[], name: string): boolean {
  for (let index = 0; index < headers.length; index += 2) {
    if (headers[index]?.length === name.length && headers[index]?.toLowerCase() === name) return true;
  }
  return false;
}
