import { randomInt } from "node:crypto";
import { SandboxError, type Sandbox } from "@coppice/core";
import { isListening } from "./is-listening.js";
import type { KernelPorts } from "./kernel-process.js";

export const PORTS_OF_KERNEL = 5;

export interface PortLeasesOptions {
  readonly firstPort: number;
  /** How many kernels there is room for. */
  readonly maximum: number;
}

/** The ports of one kernel, until it is disposed of. Safe to repeat. */
export interface PortLease extends Disposable {
  readonly ports: KernelPorts;
}

/**
 * Which ports the kernels of a server have that are told where to listen. No two of them have the same, in whichever
 * sandboxes they are: some backends give all sandboxes one loopback. Ports that anybody else listens on are passed
 * over, which the kernels of another server on the same loopback are, and those that outlived an earlier one.
 *
 * A kernel gets five ports in a row, and all kernels of all servers come from the same rows. So where two servers
 * choose one at the same moment the later kernel meets the other at the first port that it binds, and ends: some
 * kernels go on for ever when they could bind only some of them.
 */
export class PortLeases {
  readonly #firstPort: number;
  readonly #maximum: number;
  readonly #leased = new Set<number>();

  constructor({ firstPort, maximum }: PortLeasesOptions) {
    this.#firstPort = firstPort;
    this.#maximum = maximum;
  }

  /**
   * Leases ports that nobody listens on in that sandbox. Another process of the sandbox may still take one first.
   * @throws SandboxError resource_exhausted when there are none, or what `isListening` throws; then nothing is leased.
   */
  async take(sandbox: Pick<Sandbox, "dial">, signal: AbortSignal): Promise<PortLease> {
    // Anywhere, so that other servers begin elsewhere, and what was given back has time to close.
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
    throw new SandboxError(
      "resource_exhausted",
      `no ports are free for another kernel, of ${this.#firstPort} to ${last}`,
    );
  }

  /** Undefined when somebody has it. */
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
