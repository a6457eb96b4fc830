import type { Duplex } from "node:stream";
import { setTimeout as pause } from "node:timers/promises";
import { Counter, type Registry } from "prom-client";
import { SandboxError } from "../../kernel/errors.js";
import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";
import { EdgeRefusal } from "../messages/edge-refusal.js";
import type { Target } from "../surfaces/surface-request.js";
import { HttpConnection, IdleConnections, type IdleConnectionsOptions } from "./http-connection.js";

/** Of idle connections: those of one port. */
interface PortConnectionsOptions extends IdleConnectionsOptions {
  /** Most bytes of the head of an answer. */
  readonly headLimit: number;
  readonly metrics: Registry;
}

/** Pauses between dials to a program that is just starting. */
const DIAL_PAUSES_MS = [100, 200, 300, 400];

/** Connections to the ports of sandboxes. Idle ones are kept for the next request. */
export class PortConnections {
  readonly #options: PortConnectionsOptions;
  /** How often a request got each kind of connection. A counter with labels would take a microsecond each time. */
  readonly #uses = { kept: 0, opened: 0 };
  /** Idle ones by port. */
  readonly #pools = new WeakMap<LiveSandbox, Map<number, IdleConnections>>();

  constructor(options: PortConnectionsOptions) {
    this.#options = options;
    const uses = this.#uses;
    new Counter({
      name: "coppice_proxy_connections_total",
      help: "Connections to ports of sandboxes that requests got: kept ones, and newly opened ones",
      labelNames: ["how"],
      registers: [options.metrics],
      collect() {
        this.reset();
        for (const how of ["kept", "opened"] as const) this.inc({ how }, uses[how]);
      },
    });
  }

  /** Takes an idle connection, the one that waited for the shortest time. */
  take({ sandbox, port }: Target): HttpConnection | undefined {
    const connection = this.#pools.get(sandbox)?.get(port)?.take();
    if (connection !== undefined) this.#uses.kept += 1;
    return connection;
  }

  /**
   * Opens a connection.
   * @param isShared true when it is kept after its exchange.
   * @throws HttpError 502 when nothing listens there, also after a second of retries; the signal's reason.
   */
  async dial(target: Target, signal: AbortSignal, isShared: boolean): Promise<HttpConnection> {
    const stream = await dialPort(target, signal);
    this.#uses.opened += 1;
    const { headLimit } = this.#options;
    const keep = isShared ? (connection: HttpConnection) => this.#keep(target, connection) : undefined;
    const onClose = (connection: HttpConnection): void => this.#forget(target, connection);
    const connection = new HttpConnection({ stream, sender: target.sandbox, headLimit, keep, onClose });
    if (signal.aborted) stream.destroy();
    return connection;
  }

  #keep({ sandbox, port }: Target, connection: HttpConnection): void {
    if (sandbox.ended.aborted) {
      connection.stream.destroy();
      return;
    }
    const pool = this.#pools.get(sandbox) ?? this.#makePool(sandbox);
    const idle = pool.get(port) ?? new IdleConnections(this.#options);
    pool.set(port, idle);
    idle.keep(connection);
  }

  #makePool(sandbox: LiveSandbox): Map<number, IdleConnections> {
    const pool = new Map<number, IdleConnections>();
    this.#pools.set(sandbox, pool);
    const end = (): void => {
      for (const idle of pool.values()) idle.close();
    };
    sandbox.ended.addEventListener("abort", end, { once: true });
    return pool;
  }

  #forget({ sandbox, port }: Target, connection: HttpConnection): void {
    const pool = this.#pools.get(sandbox);
    const idle = pool?.get(port);
    idle?.forget(connection);
    if (idle?.isEmpty === true) pool?.delete(port);
  }
}

async function dialPort({ sandbox, port }: Target, signal: AbortSignal): Promise<Duplex> {
  for (const pauseMs of [...DIAL_PAUSES_MS, undefined]) {
    try {
      return await sandbox.runtime.dial(port, signal);
    } catch (error) {
      const isClosedPort = error instanceof SandboxError && error.code === "failed_precondition";
      if (!isClosedPort) throw error;
      if (pauseMs !== undefined) await pause(pauseMs, undefined, { signal });
    }
  }
  throw new EdgeRefusal(502, {
    reason: "port_closed",
    sandboxId: sandbox.record.id,
    message: "The sandbox is running but port is not open",
    port,
    title: "Closed Port Error",
    text: `The sandbox is running, but there is no service running on port ${port}.`,
  });
}

/** Counts one more exchange with the ports of a sandbox, until the returned function is called. */
export type ExchangeLimit = (target: Target) => () => void;

/**
 * Limits the exchanges under way with the ports of each sandbox, so that one cannot take the whole server.
 * @throws HttpError 429 with the text of the E2B edge.
 */
export function exchangeLimit(most: number): ExchangeLimit {
  const underWay = new WeakMap<LiveSandbox, number>();
  return ({ sandbox }) => {
    const count = underWay.get(sandbox) ?? 0;
    if (count >= most) {
      throw new EdgeRefusal(429, {
        reason: "exchange_limit_reached",
        sandboxId: sandbox.record.id,
        message: `The sandbox has too many concurrent incoming connections (limit: ${most})`,
        title: "Too Many Connections",
      });
    }
    underWay.set(sandbox, count + 1);
    return () => void underWay.set(sandbox, (underWay.get(sandbox) ?? 1) - 1);
  };
}
