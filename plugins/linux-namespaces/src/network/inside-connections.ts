import type { Socket } from "node:net";
import { SandboxError, messageOf } from "@coppice/core";
import type { Init, Launcher } from "../launcher/launcher.js";

/**
 * Connections into the network of a running sandbox, whose bytes do not pass through its agent. They keep that network
 * alive, so they are closed when the sandbox ends.
 */
export class InsideConnections {
  readonly #launcher: Pick<Launcher, "connect">;
  readonly #open = new Set<Socket>();
  #isClosed = false;

  constructor(launcher: Pick<Launcher, "connect">) {
    this.#launcher = launcher;
  }

  /** @throws SandboxError failed_precondition when nothing listens there, unavailable after `close`; the signal's reason. */
  async dial(init: Init, port: number, signal: AbortSignal): Promise<Socket> {
    if (!Number.isInteger(port) || port < 1 || port > 65_535)
      throw new SandboxError("port_invalid", `${port} is no port`);
    const socket = await this.#connect(init, port, signal);
    if (this.#isClosed) {
      socket.destroy();
      throw ended();
    }
    socket.allowHalfOpen = true;
    socket.setNoDelay(true);
    this.#open.add(socket);
    socket.once("close", () => this.#open.delete(socket));
    return socket;
  }

  close(): void {
    this.#isClosed = true;
    for (const socket of this.#open) socket.destroy();
  }

  async #connect(init: Init, port: number, signal: AbortSignal): Promise<Socket> {
    try {
      return await this.#launcher.connect(init, port, signal);
    } catch (error) {
      signal.throwIfAborted();
      if (this.#isClosed) throw ended();
      if (error instanceof SandboxError) throw error;
      const message = `cannot connect to port ${port}: ${messageOf(error)}`;
      throw new SandboxError("port_closed", message, { cause: error });
    }
  }
}

function ended(): SandboxError {
  return new SandboxError("sandbox_ended", "the sandbox has ended");
}
