// A plugin with a WebSocket: it sends what a sandbox uses, at once and then again and again.
import {
  Clock,
  definePlugin,
  sandboxesOf,
  Sandboxes,
  sendMessage,
  sleep,
  type WebSocket,
} from "@coppice/core";
import { z } from "zod";

const PATH = "/usage/:sandboxID";

export default definePlugin({
  name: "usage-socket",
  config: z.strictObject({
    everyMs: z.int().min(100).default(1_000).describe("Time between two messages."),
    maxSockets: z.int().positive().default(100).describe("WebSockets at a time."),
  }),
  requires: { sandboxes: Sandboxes, clock: Clock },
  setup(plugin, { sandboxes, clock }) {
    const { everyMs, maxSockets } = plugin.config;
    plugin.webSocket("api", [PATH], {
      maxMessageBytes: 1_024,
      pingIntervalMs: 30_000,
      room: { maxSockets, maxSocketsPerSandbox: 4, allowedOrigins: [] },
      // Of the tenant whose key the request has.
      sandboxOf: (request) => sandboxesOf(request, sandboxes).get(request.url.pathname.split("/")[2] ?? ""),
      open: ({ sandbox, closed, request }) => {
        const send = async (socket: WebSocket): Promise<void> => {
          for (;;) {
            const { cpuUsedPercent, memoryUsedBytes } = await sandbox.stats();
            await sendMessage(socket, JSON.stringify({ cpuUsedPercent, memoryUsedBytes }));
            await sleep(clock, everyMs, closed);
          }
        };
        // It ends when the client goes, or the sandbox, which ends its sockets.
        return (socket) =>
          void send(socket).catch((error: unknown) =>
            request.log.debug({ err: error }, "a socket has ended"),
          );
      },
    });
  },
});
