import assert from "node:assert/strict";
import type { LiveSandbox } from "@coppice/core";
import { startCodeServer, type CodeServer } from "./code-server.js";
import { JupyterSocket } from "./jupyter-socket.js";

export interface KernelModel {
  readonly id: string;
  readonly execution_state: string;
  readonly connections: number;
}

/** The Jupyter server of one sandbox, with small limits. */
export class JupyterServer implements AsyncDisposable {
  readonly code: CodeServer;
  readonly sandbox: LiveSandbox;
  readonly token: string;

  private constructor(code: CodeServer, sandbox: LiveSandbox) {
    this.code = code;
    this.sandbox = sandbox;
    this.token = sandbox.record.accessToken ?? "";
  }

  /** @param server settings over the limits. */
  static async start(server: object = {}): Promise<JupyterServer> {
    const code = await startCodeServer({
      maxContexts: 6,
      interruptGrace: "2s",
      server: {
        maxRestarts: 2,
        maxFrame: "1MiB",
        maxPending: 50,
        maxClients: 3,
        maxSessions: 2,
        ping: "3s",
        ...server,
      },
    });
    const { sandboxes } = code.server;
    return new JupyterServer(
      code,
      await sandboxes.create({ template: "base", timeoutMs: 600_000, secure: true }),
    );
  }

  root(id = this.sandbox.record.id): string {
    return `${this.code.server.url}/sandboxes/${id}/jupyter`;
  }

  api(path: string, init: RequestInit = {}): Promise<Response> {
    return fetch(`${this.root()}${path}`, {
      signal: AbortSignal.timeout(15_000),
      ...init,
      headers: { "authorization": `token ${this.token}`, "content-type": "application/json" },
    });
  }

  async startKernel(): Promise<KernelModel & AsyncDisposable> {
    const response = await this.api("/api/kernels", { method: "POST", body: "{}" });
    assert.equal(response.status, 201, await response.clone().text());
    const model = (await response.json()) as KernelModel;
    return {
      ...model,
      [Symbol.asyncDispose]: async () =>
        void (await this.api(`/api/kernels/${model.id}`, { method: "DELETE" })),
    };
  }

  connect(kernelId: string, session?: string, protocols?: readonly string[]): Promise<JupyterSocket> {
    const query = new URLSearchParams({
      token: this.token,
      ...(session !== undefined && { session_id: session }),
    });
    return JupyterSocket.open(
      `${this.root().replace(/^http/, "ws")}/api/kernels/${kernelId}/channels?${query.toString()}`,
      protocols,
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.code[Symbol.asyncDispose]();
  }
}
