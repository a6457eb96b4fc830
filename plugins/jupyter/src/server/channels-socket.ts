import { type Clock, CloseCode, SandboxError, takeMessages, type WebSocketRoute } from "@coppice/core";
import { Counter, Gauge, type Registry } from "prom-client";
import type { CodeContext } from "../contexts/code-context.js";
import { REASONS } from "../reasons.js";
import { decodeFrame, FrameError, type Framing, V1_PROTOCOL } from "./client-frame.js";
import { ClientSocket } from "./client-session.js";
import { kernelNamed } from "./jupyter-routes.js";
import type { JupyterServerSettings } from "./jupyter-server-config.js";
import type { FindKernels } from "./sandbox-kernels.js";

interface ChannelsSocketOptions {
  readonly kernelsOf: FindKernels;
  readonly settings: JupyterServerSettings;
  readonly clock: Clock;
  readonly metrics: ClientMetrics;
}

const KERNEL_PATH = /\/api\/kernels\/([^/]+)\/channels$/;
const MAX_SESSION_ID = 256;
/** A kernel that is not ours may be silent until its code has ended. */
const ADOPTION_MS = 5000;

/** The WebSocket of a kernel: all its channels on one connection, in either framing. */
export function channelsSocket(options: ChannelsSocketOptions): WebSocketRoute {
  const { kernelsOf, settings, clock, metrics } = options;
  let anonymous = 0;
  return {
    maxMessageBytes: settings.maxFrame,
    pingIntervalMs: settings.ping,
    protocol: V1_PROTOCOL,
    async open({ request: { url, log }, sandbox }) {
      const kernels = await kernelsOf(sandbox);
      const context = kernelNamed(kernels, KERNEL_PATH.exec(url.pathname)?.[1] ?? "");
      const clients = kernels.clientsOf(context);
      await untilHeard(context, clock);
      // Undefined for a client that cannot reconnect.
      const givenId = url.searchParams.get("session_id") || undefined;
      if (givenId !== undefined && (givenId.length > MAX_SESSION_ID || /\s/.test(givenId)))
        throw new SandboxError("session_id_invalid", "session_id is not a short word");
      if (!clients.hasRoomFor(givenId ?? "")) {
        const text = `the kernel already has ${settings.maxClients} clients`;
        throw new SandboxError(REASONS.kernel_client_limit_reached, text);
      }
      return (socket) => {
        const framing: Framing = socket.protocol === V1_PROTOCOL ? "v1" : "json";
        const client = new ClientSocket(socket, { framing, clock, settings, place: clients.place() });
        metrics.connections.inc();
        // With a space, which clients' own ids cannot contain.
        const session = clients.connect(givenId ?? `anonymous ${++anonymous}`, client);
        takeMessages(socket, sandbox, async (data, isBinary) => {
          try {
            clients.accept(session, await decodeFrame(data, { framing, isBinary }));
          } catch (error) {
            if (error instanceof FrameError) {
              metrics.refusedFrames.inc();
              client.close(CloseCode.InvalidData, error.message);
            } else {
              log.error({ err: error }, "a client's message failed");
              client.close(CloseCode.InternalError, "internal error");
            }
          }
        });
        socket.once("close", () => {
          metrics.connections.dec();
          if (client.closedWith === CloseCode.TryAgain) metrics.slowClients.inc();
          clients.disconnect(session, client, givenId !== undefined);
        });
      };
    },
  };
}

/**
 * Waits, for a time, until this server hears what the kernel of an earlier one publishes. A client that is connected
 * before may act at once, by a file for example, and miss what its code prints then.
 */
function untilHeard({ adopted }: CodeContext, clock: Clock): Promise<void> {
  return new Promise((resolve) => {
    const cancel = clock.after(ADOPTION_MS, resolve);
    void adopted.then(() => {
      cancel();
      resolve();
    });
  });
}

type ClientMetrics = ReturnType<typeof clientMetrics>;

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
