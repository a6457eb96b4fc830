import { Agent, type ClientRequest, type ClientRequestArgs } from "node:http";
import type { Duplex } from "node:stream";
import { setTimeout as pause } from "node:timers/promises";
import { SandboxError } from "../../kernel/errors.js";
import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";
import { EdgeRefusal } from "../messages/edge-refusal.js";
import type { Target } from "../surfaces/surface-request.js";

export interface PortConnectionsOptions {
  /** Time that an idle connection waits for its next request. */
  readonly idleTimeoutMs: number;
  readonly maxIdle: number;
}

/** Pauses between dials to a program that is just starting. */
const DIAL_PAUSES_MS = [100, 200, 300, 400];

/**
 * An agent with keep-alive connections to the ports of a sandbox; the option `port` of a request names the port. The
 * backend ends its connections with the sandbox.
 */
export type PortConnections = (sandbox: LiveSandbox) => Agent;

export function portConnections(options: PortConnectionsOptions): PortConnections {
  const agents = new WeakMap<LiveSandbox, PortAgent>();
  return (sandbox) => {
    const agent = agents.get(sandbox) ?? new PortAgent(sandbox, options);
    agents.set(sandbox, agent);
    return agent;
  };
}

/**
 * Connects to a port of a sandbox.
 * @throws HttpError 502 when nothing listens there, also after a second of retries.
 */
export async function dialPort({ sandbox, port }: Target, signal: AbortSignal): Promise<Duplex> {
  for (const pauseMs of [...DIAL_PAUSES_MS, undefined]) {
    try {
      const socket = await sandbox.runtime.dial(port, signal);
      // Without a listener an error between two requests would end the server.
      socket.on("error", () => undefined);
      return socket;
    } catch (error) {
      const isClosedPort = error instanceof SandboxError && error.code === "failed_precondition";
      if (!isClosedPort) throw error;
      if (pauseMs !== undefined) await pause(pauseMs, undefined, { signal });
    }
  }
  const message = "The sandbox is running but port is not open";
  throw new EdgeRefusal(502, { reason: "port_closed", sandboxId: sandbox.record.id, message, port });
}

/** Node passes an error alone; its types do not say so. */
type DialCallback = (error: unknown, stream?: Duplex) => void;

/** Node's own pool over the backend's `dial`, whose streams need not be sockets of this host. */
class PortAgent extends Agent {
  readonly #sandbox: LiveSandbox;
  readonly #idleTimeoutMs: number;
  /** Functions that cancel the timers of idle connections. */
  readonly #waiting = new WeakMap<Duplex, () => void>();

  constructor(sandbox: LiveSandbox, { idleTimeoutMs, maxIdle }: PortConnectionsOptions) {
    super({ keepAlive: true, maxFreeSockets: maxIdle, scheduling: "lifo" });
    this.#sandbox = sandbox;
    this.#idleTimeoutMs = idleTimeoutMs;
  }

  override createConnection(
    options: ClientRequestArgs,
    callback?: (error: Error | null, stream: Duplex) => void,
  ): undefined {
    void this.#dial(Number(options.port), callback as DialCallback | undefined);
  }

  async #dial(port: number, callback: DialCallback | undefined): Promise<void> {
    let stream: Duplex;
    try {
      // Not aborted with the first request: the pool may give the connection to another one.
      stream = await dialPort({ sandbox: this.#sandbox, port }, this.#sandbox.ended);
    } catch (error) {
      callback?.(error);
      return;
    }
    callback?.(undefined, asSocket(stream));
  }

  override keepSocketAlive(socket: Duplex): boolean {
    const drop = (): void => void socket.destroy();
    const timer = setTimeout(drop, this.#idleTimeoutMs).unref();
    // Bytes between two requests belong to neither; a connection that the program closes is useless.
    socket.once("end", drop);
    socket.once("data", drop);
    socket.resume();
    this.#waiting.set(socket, () => {
      clearTimeout(timer);
      socket.off("end", drop);
      socket.off("data", drop);
    });
    return true;
  }

  override reuseSocket(socket: Duplex, request: ClientRequest): void {
    this.#waiting.get(socket)?.();
    this.#waiting.delete(socket);
    super.reuseSocket(socket, request);
  }
}

/** Node's pool expects sockets of this host; a backend's stream need not be one. */
function asSocket(stream: Duplex): Duplex {
  return "ref" in stream ? stream : Object.assign(stream, { ref: () => stream, unref: () => stream });
}
