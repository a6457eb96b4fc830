import { Counter, Gauge, type Registry } from "prom-client";
import { CloseCode } from "./client-socket.js";

export class ClientMetrics {
  readonly #connections: Gauge;
  readonly #slow: Counter;
  readonly #refused: Counter;

  constructor(registry: Registry) {
    const registers = [registry];
    this.#connections = new Gauge({
      name: "coppice_jupyter_connections",
      help: "WebSockets of Jupyter clients that are open.",
      registers,
    });
    this.#slow = new Counter({
      name: "coppice_jupyter_slow_clients_total",
      help: "WebSockets that were closed because more waited for or from their client than may.",
      registers,
    });
    this.#refused = new Counter({
      name: "coppice_jupyter_refused_frames_total",
      help: "WebSocket messages of clients that were no message of Jupyter's.",
      registers,
    });
  }

  connected(): void {
    this.#connections.inc();
  }

  /** @param code of the server's close; undefined when the client closed it. */
  disconnected(code: number | undefined): void {
    this.#connections.dec();
    if (code === CloseCode.TryAgain) this.#slow.inc();
  }

  refusedFrame(): void {
    this.#refused.inc();
  }
}
