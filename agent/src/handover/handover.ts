import { close, constants, fstat, open } from "node:fs";
import { Socket } from "node:net";
import { promisify } from "node:util";
import { type Link, PayloadReader, ProtocolError, Request } from "../wire/frames.js";
import { connectBy } from "../built/agent-binary.js";

const NONE = 0xffff_ffff;

/** A descriptor of one object of the agent, handed over to this process. */
export class Handover {
  readonly #link: Link;
  #answer: PromiseWithResolvers<number | undefined> | undefined;
  #isLost = false;

  constructor(link: Link) {
    this.#link = link;
  }

  /** Asks for the descriptor, once. Undefined where it cannot be had. The caller closes it. */
  async take(): Promise<number | undefined> {
    if (!this.#link.canShare || this.#answer !== undefined || this.#isLost) return undefined;
    this.#answer = Promise.withResolvers();
    this.#link.send(Request.Share);
    return this.#answer.promise;
  }

  receive(payload: Buffer): void {
    const reader = new PayloadReader(payload);
    const descriptor = reader.u32();
    reader.end();
    if (this.#answer === undefined) throw new ProtocolError("an answer to no request for a descriptor");
    if (this.#isLost) return;
    this.#answer.resolve(descriptor === NONE ? undefined : this.#link.takeDescriptor(descriptor));
  }

  /** An answer that has not come yet is of no use. */
  lost(): void {
    this.#isLost = true;
    this.#answer?.resolve(undefined);
  }
}

const statOf = promisify(fstat);
const openAt = promisify(open);
const FLAGS = constants.O_WRONLY | constants.O_NONBLOCK;
/** What a pipe has at most without a capability. */
const BUFFER_BYTES = 1_048_576;

/** The writing end of a pipe or socket into a sandbox, whose bytes pass no frames on their way. */
export class SharedInput {
  readonly #socket: Socket;

  private constructor(descriptor: number) {
    this.#socket = new Socket({ fd: descriptor, readable: false, writable: true });
    // Every write reports it.
    this.#socket.on("error", () => undefined);
  }

  /** Undefined where the agent hands over neither. */
  static async open(handover: Handover): Promise<SharedInput | undefined> {
    const descriptor = await handover.take();
    if (descriptor === undefined) return undefined;
    try {
      const status = await statOf(descriptor);
      // It brings the agent the other end of a new pair. This end is of this process alone, and so are its flags.
      if (status.isSocket()) {
        const own = connectBy(descriptor, BUFFER_BYTES);
        return own === undefined ? undefined : new SharedInput(own);
      }
      // A replaced agent may name any of its descriptors.
      if (!status.isFIFO()) return undefined;
      // The same pipe with flags of its own: those of a duplicate are the agent's, too, which could make it blocking.
      return new SharedInput(await openAt(`/proc/self/fd/${descriptor}`, FLAGS));
    } catch {
      // Nobody reads it any more; what is sent in frames says so.
      return undefined;
    } finally {
      close(descriptor);
    }
  }

  /** Resolves when the kernel has all of it. The data must not change before. @throws Error when nobody reads any more. */
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

  destroy(): void {
    this.#socket.destroy();
  }
}
