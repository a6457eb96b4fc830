import type { HttpConnection } from "./http-connection.js";

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
