import { once } from "node:events";
import { connect, isIP, type Socket } from "node:net";
import { connect as connectTls } from "node:tls";
import { blockReads, HttpConnection, IdleConnections } from "@coppice/core";

export interface RelayConnectionsOptions {
  /** URL of the other server's listener. */
  readonly address: string;
  /** The authority of its certificate, where the system's do not do. */
  readonly ca: string | undefined;
  /** Time for a connection. */
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

  /** Takes an idle connection. */
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
