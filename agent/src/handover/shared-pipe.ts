import { close, constants, fstat, open } from "node:fs";
import { Socket } from "node:net";
import { promisify } from "node:util";
import type { Handover } from "./handover.js";

const statOf = promisify(fstat);
const openAt = promisify(open);
const FLAGS = constants.O_WRONLY | constants.O_NONBLOCK;

/** The writing end of a pipe into a sandbox, whose bytes pass no agent on their way. */
export class SharedPipe {
  readonly #socket: Socket;

  private constructor(descriptor: number) {
    this.#socket = new Socket({ fd: descriptor, readable: false, writable: true });
    // Every write reports it.
    this.#socket.on("error", () => undefined);
  }

  /** Undefined where the agent hands over no pipe. */
  static async open(handover: Handover): Promise<SharedPipe | undefined> {
    const descriptor = await handover.take();
    if (descriptor === undefined) return undefined;
    try {
      // A replaced agent may name any of its descriptors.
      if (!(await statOf(descriptor)).isFIFO()) return undefined;
      // The same pipe with flags of its own: those of a duplicate are the agent's, too, which could make it blocking.
      return new SharedPipe(await openAt(`/proc/self/fd/${descriptor}`, FLAGS));
    } catch {
      // Nobody reads it any more; what is sent in frames says so.
      return undefined;
    } finally {
      close(descriptor);
    }
  }

  /** Resolves when the pipe has all of it. The data must not change before. @throws Error when nobody reads any more. */
  write(data: Uint8Array): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#socket.write(data, (error) => {
        if (error) reject(error);
        else resolve();
      });
    });
  }

  /** Closes it after the writes that are under way. */
  end(): Promise<void> {
    return new Promise((resolve) => {
      this.#socket.once("close", () => resolve());
      this.#socket.end(() => this.#socket.destroy());
      if (this.#socket.closed) resolve();
    });
  }

  /** Closes it at once. Writes that are under way fail. */
  destroy(): void {
    this.#socket.destroy();
  }
}
