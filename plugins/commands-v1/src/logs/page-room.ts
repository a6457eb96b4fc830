import { SandboxError } from "@coppice/core";

/** Room for pages of logs in the memory of the server: clients may ask for many, and take none. */
export class PageRoom {
  readonly #maxBytes: number;
  #takenBytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /**
   * Room for a page, until the disposal.
   * @throws SandboxError unavailable while other pages take all of it.
   */
  take(bytes: number): Disposable & {
    /** Gives back what the page does not need. */
    readonly shrink: (toBytes: number) => void;
  } {
    if (this.#takenBytes + bytes > this.#maxBytes) {
      throw new SandboxError("server_busy", "too many pages of logs wait for their clients");
    }
    let taken = bytes;
    this.#takenBytes += taken;
    const shrink = (toBytes: number): void => {
      const kept = Math.min(taken, Math.max(toBytes, 0));
      this.#takenBytes -= taken - kept;
      taken = kept;
    };
    return { shrink, [Symbol.dispose]: () => shrink(0) };
  }
}
