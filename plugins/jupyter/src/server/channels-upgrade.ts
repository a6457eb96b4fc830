import { SandboxError, type Clock, type UpgradeHandler } from "@coppice/core";
import { WebSocketServer, type RawData } from "ws";
import type { CodeContext } from "../contexts/code-context.js";
import { decodeFrame, FrameError, V1_PROTOCOL, type Framing } from "./client-frame.js";
import type { ClientMetrics } from "./client-metrics.js";
import { ClientSocket, CloseCode } from "./client-socket.js";
import { kernelNamed } from "./jupyter-routes.js";
import type { JupyterServerSettings } from "./jupyter-server-config.js";
import type { FindKernels } from "./sandbox-kernels.js";

interface ChannelsUpgradeOptions {
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
export function channelsUpgrade(options: ChannelsUpgradeOptions): UpgradeHandler {
  const { kernelsOf, settings, clock, metrics } = options;
  const server = new WebSocketServer({
    noServer: true,
    clientTracking: false,
    maxPayload: settings.maxFrame,
    // Messages are mostly small and urgent.
    perMessageDeflate: false,
    handleProtocols: (offered) => (offered.has(V1_PROTOCOL) ? V1_PROTOCOL : false),
  });
  let anonymous = 0;

  return async ({ target, url, log }, upgrade) => {
    if (target === undefined) throw new SandboxError("sandbox_not_found", "the request names no sandbox");
    const kernels = await kernelsOf(target.sandbox);
    const context = kernelNamed(kernels, KERNEL_PATH.exec(url.pathname)?.[1] ?? "");
    const clients = kernels.clientsOf(context);
    await untilHeard(context, clock);
    // Undefined for a client that cannot reconnect.
    const givenId = url.searchParams.get("session_id") || undefined;
    if (givenId !== undefined && (givenId.length > MAX_SESSION_ID || /\s/.test(givenId)))
      throw new SandboxError("session_id_invalid", "session_id is not a short word");
    if (!clients.hasRoomFor(givenId ?? "")) {
      const text = `the kernel already has ${settings.maxClients} clients`;
      throw new SandboxError("kernel_client_limit_reached", text);
    }
    server.handleUpgrade(upgrade.message, upgrade.socket, upgrade.head, (socket) => {
      const framing: Framing = socket.protocol === V1_PROTOCOL ? "v1" : "json";
      const client = new ClientSocket(socket, { framing, clock, settings });
      metrics.connections.inc();
      // With a space, which clients' own ids cannot contain.
      const session = clients.connect(givenId ?? `anonymous ${++anonymous}`, client);
      socket.on("message", (data: RawData, isBinary: boolean) => {
        try {
          clients.accept(session, decodeFrame(data as Buffer, { framing, isBinary }));
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
    });
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
