import { Counter, Gauge, type Registry } from "prom-client";

export type ClientMetrics = ReturnType<typeof clientMetrics>;

export function clientMetrics(registry: Registry) {
  const registers = [registry];
  return {
    connections: new Gauge({
      name: "coppice_jupyter_connections",
      help: "WebSockets of Jupyter clients that are open.",
      registers,
    }),
    slowClients: new Counter({
      name: "coppice_jupyter_slow_clients_total",
      help: "WebSockets that were closed because more waited for or from their client than may.",
      registers,
    }),
    refusedFrames: new Counter({
      name: "coppice_jupyter_refused_frames_total",
      help: "WebSocket messages of clients that were no message of Jupyter's.",
      registers,
    }),
  };
}
