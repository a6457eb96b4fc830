import type { LiveSandbox } from "@coppice/core";
import type { TestServer } from "@coppice/core/testing";
import { KernelManager, ServerConnection, SessionManager } from "@jupyterlab/services";
import { WebSocket } from "ws";

/** How messages travel on JupyterLab's WebSocket. */
export type Framing = "v1" | "json";

/** JupyterLab's own client of one sandbox. Dispose of it, or its polls go on. */
export interface JupyterClient extends Disposable {
  readonly settings: ServerConnection.ISettings;
  readonly kernels: KernelManager;
  readonly sessions: SessionManager;
  /** Every WebSocket that the client opened, the newest last. */
  readonly sockets: readonly WebSocket[];
}

export interface JupyterClientOptions {
  readonly server: TestServer;
  readonly sandbox: LiveSandbox;
  readonly framing: Framing;
}

export function jupyterClient({ server, sandbox, framing }: JupyterClientOptions): JupyterClient {
  const sockets: WebSocket[] = [];
  class RecordedSocket extends WebSocket {
    constructor(url: string, protocols: string | string[] = []) {
      super(url, framing === "v1" ? protocols : []);
      sockets.push(this);
    }
  }
  const baseUrl = `${server.url}/sandboxes/${sandbox.record.id}/jupyter/`;
  const settings = ServerConnection.makeSettings({
    baseUrl,
    wsUrl: baseUrl.replace(/^http/, "ws"),
    token: sandbox.record.accessToken ?? "",
    appendToken: true,
    fetch,
    Request,
    Headers,
    WebSocket: RecordedSocket as unknown as typeof globalThis.WebSocket,
  });
  const kernels = new KernelManager({ serverSettings: settings, standby: "never" });
  // JupyterLab forgets this timer with a kernel that dies early, and a minute of it would keep the process.
  kernels.kernelInfoTimeout = 3_000;
  const sessions = new SessionManager({ serverSettings: settings, kernelManager: kernels, standby: "never" });
  return {
    settings,
    kernels,
    sessions,
    sockets,
    [Symbol.dispose]() {
      sessions.dispose();
      kernels.dispose();
      for (const socket of sockets) socket.terminate();
    },
  };
}
