import { randomInt } from "node:crypto";
import { SandboxError } from "@coppice/core";
import type { Sandbox } from "@coppice/core/backend";
import { REASONS } from "../reasons.js";
import type { KernelPorts } from "./kernel-process.js";

export const PORTS_OF_KERNEL = 5;

/** The ports of one kernel, until it is disposed of. Safe to repeat. */
export interface PortLease extends Disposable {
  readonly ports: KernelPorts;
}

/**
 * Assigns ports to installed kernels of all sandboxes of a server, each once: some backends give all sandboxes one
 * loopback. Ports in use are skipped, such as those of another server's kernels on the same loopback, and of kernels
 * that outlived an earlier server.
 *
 * A kernel gets a row of five ports, and all servers use the same rows. When two servers choose the same row at once,
 * the later kernel fails at its first port and ends. With overlapping rows it could fail at a later port only, and some
 * kernels then run forever.
 */
export class PortLeases {
  readonly #firstPort: number;
  readonly #maximum: number;
  readonly #leased = new Set<number>();

  constructor({ firstPort, maximum }: { readonly firstPort: number; readonly maximum: number }) {
    this.#firstPort = firstPort;
    this.#maximum = maximum;
  }

  /**
   * Leases ports without a listener in that sandbox. Another process of the sandbox may still take one first.
   * @throws SandboxError resource_exhausted when there are none, or the error of `isListening`; nothing is leased then.
   */
  async take(sandbox: Pick<Sandbox, "dial">, signal: AbortSignal): Promise<PortLease> {
    // At random, so that other servers begin elsewhere, and released ports have time to close.
    const start = randomInt(this.#maximum);
    for (let offset = 0; offset < this.#maximum; offset++) {
      const lease = this.#lease((start + offset) % this.#maximum);
      if (lease === undefined) continue;
      try {
        if (!(await isListening(sandbox, Object.values(lease.ports), signal))) return lease;
      } catch (error) {
        lease[Symbol.dispose]();
        throw error;
      }
      lease[Symbol.dispose]();
    }
    const last = this.#firstPort + this.#maximum * PORTS_OF_KERNEL - 1;
    const text = `no ports are free for another kernel, of ${this.#firstPort} to ${last}`;
    throw new SandboxError(REASONS.ports_exhausted, text);
  }

  /** Undefined when it is leased. */
  #lease(row: number): PortLease | undefined {
    if (this.#leased.has(row)) return undefined;
    this.#leased.add(row);
    const shell = this.#firstPort + row * PORTS_OF_KERNEL;
    let isOver = false;
    return {
      ports: { shell, iopub: shell + 1, stdin: shell + 2, control: shell + 3, hb: shell + 4 },
      [Symbol.dispose]: () => {
        // By now the next one may have it.
        if (!isOver) this.#leased.delete(row);
        isOver = true;
      },
    };
  }
}

/** A loopback answers at once, unless its backlog is full or the machine is overloaded. */
const MAX_ANSWER_MS = 1000;

/**
 * True when a program in the sandbox listens on any of these ports. A port without an answer within a second counts as
 * used: it was not refused.
 * @throws the signal's reason, or the error of `dial` when it cannot tell, such as unavailable for an ended sandbox.
 */
export async function isListening(
  sandbox: Pick<Sandbox, "dial">,
  ports: readonly number[],
  signal: AbortSignal,
): Promise<boolean> {
  const answers = await Promise.all(ports.map((port) => isTaken(sandbox, port, signal)));
  return answers.includes(true);
}

async function isTaken(sandbox: Pick<Sandbox, "dial">, port: number, signal: AbortSignal): Promise<boolean> {
  const late = AbortSignal.timeout(MAX_ANSWER_MS);
  try {
    const stream = await sandbox.dial(port, AbortSignal.any([signal, late]));
    // The listener may close the stream first.
    stream.on("error", () => undefined);
    stream.destroy();
    return true;
  } catch (error) {
    // First, because its reason may look like a refusal.
    signal.throwIfAborted();
    if (late.aborted) return true;
    if (error instanceof SandboxError && error.code === "failed_precondition") return false;
    throw error;
  }
}
