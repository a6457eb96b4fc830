import { Counter, Gauge, type Registry } from "prom-client";
import { CloseCode } from "./client-socket.js";

export type ClientMetrics = ReturnType<typeof clientMetrics>;

export function clientMetrics(registry: Registry) {
  const registers = [registry];
  const connections = new Gauge({
    name: "coppice_jupyter_connections",
    help: "WebSockets of Jupyter clients that are open.",
    registers,
  });
  const slow = new Counter({
    name: "coppice_jupyter_slow_clients_total",
    help: "WebSockets that were closed because more waited for or from their client than may.",
    registers,
  });
  const refused = new Counter({
    name: "coppice_jupyter_refused_frames_total",
    help: "WebSocket messages of clients that were no message of Jupyter's.",
    registers,
  });
  return {
    connected: () => connections.inc(),
    /** @param code of the server's close; undefined when the client closed it. */
    disconnected(code: number | undefined): void {
      connections.dec();
      if (code === CloseCode.TryAgain) slow.inc();
    },
    refusedFrame: () => refused.inc(),
  };
}
