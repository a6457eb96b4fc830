import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { destroySoon, lastAnswer } from "../messages/last-answer.js";
import { headerLines } from "../messages/heads.js";
import type { SurfaceRequest, Target } from "../surfaces/surface-request.js";
import type { AnswerHead } from "./answer-head.js";
import { brokenPort, requestHead } from "./proxy-request.js";
import type { HttpConnection, HttpExchange } from "./http-connection.js";
import type { PortConnections } from "./port-connections.js";

/** Limit of the bytes sent before an upgrade is answered. WebSocket clients send none. */
const EARLY_BYTES = 64 * 1024;

interface ProxiedUpgrade {
  readonly request: Pick<SurfaceRequest, "signal">;
  readonly target: Target;
  readonly message: IncomingMessage;
  readonly socket: Duplex;
  readonly head: Buffer;
}

/**
 * Proxies an upgrade (a WebSocket) to a port of its sandbox and then moves bytes. Only an answer 101 makes a tunnel.
 * After any other answer the connection is closed: a proxy in front of this server would reuse it for another client.
 */
export async function proxyUpgrade(proxied: ProxiedUpgrade, connections: PortConnections): Promise<void> {
  const { target, request } = proxied;
  const connection = await connections.dial(target, request.signal, false);
  await new Tunnel(proxied, connection).open();
}

/** The part of a tunnel that its answer makes useless: thousands of tunnels would keep it. */
interface Asking {
  readonly message: IncomingMessage;
  readonly target: Target;
  readonly early: Buffer[];
  earlyBytes: number;
  readonly answered: PromiseWithResolvers<void>;
}

class Tunnel implements HttpExchange {
  readonly method: string;
  readonly #socket: Duplex;
  readonly #connection: HttpConnection;
  #asking: Asking | undefined;
  /** An answer that is no upgrade. */
  #response: ServerResponse | undefined;
  #isOpen = false;

  constructor({ head, message, socket, target }: ProxiedUpgrade, connection: HttpConnection) {
    this.method = message.method ?? "GET";
    this.#socket = socket;
    this.#connection = connection;
    const answered = Promise.withResolvers<void>();
    this.#asking = { message, target, early: [head], earlyBytes: head.length, answered };
  }

  /** Resolves with the answer. @throws HttpError 502 for one that is none. */
  async open(): Promise<void> {
    const { stream } = this.#connection;
    const socket = this.#socket;
    if (this.#asking === undefined) return;
    const { answered, message, target } = this.#asking;
    this.#connection.begin(this);
    // The client hung up during the dial: its end is told once.
    if (socket.destroyed || socket.readableEnded) {
      this.#connection.abandon(this);
      socket.destroy();
      return;
    }
    socket.once("close", () => {
      this.#connection.abandon(this);
      this.#asking?.answered.resolve();
    });
    // Read from the start: an unread socket does not reveal that its client has left.
    socket.on("data", (bytes: Buffer) => this.#send(bytes));
    socket.once("end", () => this.#hangUp());
    // One that waits for a program which reads nothing does not reveal it, either. Node still counts `http.idleTimeout`.
    socket.on("timeout", () => {
      if (socket.isPaused()) socket.destroy();
    });
    socket.on("drain", () => this.#connection.resume());
    const option = `Connection: Upgrade\r\nUpgrade: ${message.headers.upgrade ?? ""}\r\n`;
    stream.write(requestHead(message, target, option), "latin1");
    await answered.promise;
  }

  head({ headers, isUpgrade, status }: AnswerHead): void {
    if (this.#asking === undefined) return;
    const { answered, early, message } = this.#asking;
    if (isUpgrade) {
      this.#socket.write(`HTTP/1.1 101 Switching Protocols\r\n${headerLines(headers)}\r\n`, "latin1");
      this.#isOpen = true;
      for (const bytes of early) if (bytes.length > 0) this.#send(bytes);
    } else if (status < 200) throw new Error(`the program answered with the status ${status}`);
    else this.#response = lastAnswer(message, this.#socket, { status, headers });
    this.#asking = undefined;
    answered.resolve();
  }

  body(bytes: Buffer): void {
    if (!(this.#response ?? this.#socket).write(bytes)) this.#connection.pause();
  }

  end(bytes: Buffer | undefined): void {
    if (this.#response !== undefined) {
      this.#response.end(bytes);
      return;
    }
    // A slow client gets all that the program has sent.
    this.#socket.end(bytes, () => destroySoon(this.#socket));
  }

  drain(): void {
    this.#socket.resume();
  }

  fail(error: unknown): void {
    if (this.#asking === undefined) {
      if (!this.#socket.writableEnded) this.#socket.destroy();
      return;
    }
    const { answered, target } = this.#asking;
    this.#asking = undefined;
    answered.reject(brokenPort(target, error));
  }

  #send(bytes: Buffer): void {
    if (this.#asking !== undefined && !this.#isOpen) {
      this.#asking.early.push(bytes);
      this.#asking.earlyBytes += bytes.length;
      if (this.#asking.earlyBytes > EARLY_BYTES) this.#socket.destroy();
    } else if (this.#isOpen && !this.#connection.stream.write(bytes)) this.#socket.pause();
  }

  #hangUp(): void {
    if (this.#asking !== undefined) this.#socket.destroy();
    if (!this.#isOpen) return;
    // A WebSocket has no half-open state: a peer that does not hang up after the other is not waited for.
    this.#connection.stream.end();
    destroySoon(this.#socket);
  }
}
