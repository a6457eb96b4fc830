import type { Link } from "../wire/channel.js";
import { PayloadReader, ProtocolError, Request } from "../wire/frames.js";

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

  /** @throws ProtocolError */
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
