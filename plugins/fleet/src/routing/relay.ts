import type { ServerResponse } from "node:http";
import { once } from "node:events";
import { connect, isIP, type Socket } from "node:net";
import { connect as connectTls } from "node:tls";
import {
  ENVELOPE,
  headerLines,
  type passRequest,
  blockReads,
  HttpConnection,
  IdleConnections,
} from "@coppice/core";
import { passedBackHeaders } from "./fleet-headers.js";

interface RelayConnectionsOptions {
  readonly address: string;
  /** The authority of its certificate, where the system's do not do. */
  readonly ca: string | undefined;
  readonly connectMs: number;
}

/** Below Node's own time for idle connections, after which the other server closes them. */
const IDLE_MS = 4000;
const MOST_IDLE = 256;
/** Most bytes of the head of an answer: what the other server took from a program, and its own headers. */
export const HEAD_LIMIT_BYTES = 256 * 1024;

/** Connections to another server for requests that are passed on. Idle ones are kept for the next. */
export class RelayConnections {
  readonly #options: RelayConnectionsOptions;
  readonly #idle = new IdleConnections({ idleTimeoutMs: IDLE_MS, maxIdle: MOST_IDLE });
  /** Of all connections, also of those that are being made. */
  readonly #sockets = new Set<Socket>();

  constructor(options: RelayConnectionsOptions) {
    this.#options = options;
  }

  take(): HttpConnection | undefined {
    return this.#idle.take();
  }

  /** @throws Error when there is none in time */
  async dial(): Promise<HttpConnection> {
    const { address, ca, connectMs } = this.#options;
    const { hostname, port, protocol } = new URL(address);
    const isTls = protocol === "https:";
    const host = hostname.replace(/^\[(.*)\]$/, "$1");
    const to = { host, port: Number(port) || (isTls ? 443 : 80), noDelay: true };
    const stream: Socket = isTls
      ? connectTls({ ...to, ...(isIP(host) === 0 && { servername: host }), ...(ca !== undefined && { ca }) })
      : connect({ ...to, onread: blockReads((bytes) => stream.emit("data", bytes)) });
    this.#sockets.add(stream);
    stream.once("close", () => this.#sockets.delete(stream));
    const timer = setTimeout(() => stream.destroy(new Error("the connection timed out")), connectMs);
    try {
      await once(stream, isTls ? "secureConnect" : "connect");
    } catch (error) {
      stream.destroy();
      throw error;
    } finally {
      clearTimeout(timer);
    }
    return new HttpConnection({
      stream,
      sender: this,
      headLimit: HEAD_LIMIT_BYTES,
      keep: (connection) => this.#idle.keep(connection),
      onClose: (connection) => this.#idle.forget(connection),
    });
  }

  /** Ends what is under way: a server that is gone may never say so. */
  end(): void {
    for (const socket of this.#sockets) socket.destroy(new Error("the server is gone"));
  }
}

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

const CONNECT_STREAM = "application/connect+";

/** A request for another server. */
export function relayed({
  message,
  response,
  headers,
  proof,
  refusal,
  loss,
}: Pick<PassedRequest, "message" | "response" | "refusal"> & {
  /** Of the request: names and values in turn. */
  readonly headers: readonly string[];
  /** The line with the proof of one attempt. */
  readonly proof: () => readonly [name: string, value: string];
  readonly loss: Loss;
}): PassedRequest {
  let stream: ConnectStream | undefined;
  return {
    message,
    response,
    refusal,
    requestHead: (option) =>
      `${message.method} ${message.url} HTTP/1.1\r\n${headerLines([...headers, ...proof(), "connection", option])}\r\n`,
    answerHeaders(given) {
      if (given.some((text) => text.startsWith(CONNECT_STREAM))) stream = new ConnectStream();
      return passedBackHeaders(given);
    },
    passedBack: (bytes) => stream?.take(bytes),
    breakOff() {
      if (stream === undefined) response.destroy();
      else void stream.breakOff(response, loss);
    },
    onEnd: (act) => void response.once("close", act),
  };
}
