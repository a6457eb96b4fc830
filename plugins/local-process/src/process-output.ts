import type { Readable } from "node:stream";
import { setImmediate as nextTurn } from "node:timers/promises";
import type { Output } from "@coppice/core/backend";

/** More than a pipe and the buffers on this side of it can hold. */
const LEFT_IN_PIPE_BYTES = 1_048_576;

/**
 * What a process writes to its pipes, pulled: while nobody asks, at most one buffer per stream is read
 * ahead, the pipe fills, and the process waits.
 */
export class ProcessOutput implements AsyncIterable<Output> {
  /** Settles when both pipes are closed on this side. */
  readonly closed: Promise<void>;
  readonly #sources: { readonly stream: Output["stream"]; readonly readable: Readable; ended: boolean }[];
  #changed = Promise.withResolvers<void>();
  #isIterated = false;
  #isDiscarded = false;
  /** Set when only what is in the pipes already counts. */
  #leftBytes: number | undefined;

  constructor(streams: { readonly stdout: Readable; readonly stderr: Readable }) {
    this.#sources = [
      { stream: "stdout", readable: streams.stdout, ended: false },
      { stream: "stderr", readable: streams.stderr, ended: false },
    ];
    const closings = this.#sources.map(
      (source) =>
        new Promise<void>((resolve) => {
          const end = (): void => {
            source.ended = true;
            this.#wake();
          };
          source.readable
            .on("readable", () => this.#wake())
            .on("end", end)
            .on("error", end)
            .on("close", () => {
              end();
              resolve();
            });
        }),
    );
    this.closed = Promise.all(closings).then(() => undefined);
  }

  [Symbol.asyncIterator](): AsyncIterator<Output, undefined> {
    if (this.#isIterated) throw new TypeError("the output of a process can be iterated once");
    this.#isIterated = true;
    return {
      next: async () => {
        const value = await this.#next();
        return value === undefined ? { done: true, value } : { done: false, value };
      },
      return: async () => {
        this.discard();
        return { done: true, value: undefined };
      },
    };
  }

  /** Reads on, for the process's sake, and forgets. */
  discard(): void {
    this.#isDiscarded = true;
    // A listener for `readable` would keep the stream from flowing.
    for (const { readable } of this.#sources) readable.removeAllListeners("readable").resume();
    this.#wake();
  }

  /** Ends the iteration after what is in the pipes now, although somebody still holds their other end. */
  finish(): void {
    this.#leftBytes ??= LEFT_IN_PIPE_BYTES;
    this.#wake();
    if (this.#isDiscarded) this.destroy();
  }

  /** Closes the pipes. */
  destroy(): void {
    for (const { readable } of this.#sources) readable.destroy();
  }

  async #next(): Promise<Output | undefined> {
    for (;;) {
      if (this.#isDiscarded) return undefined;
      const output = this.#take();
      if (output !== undefined) return output;
      if (this.#sources.every((source) => source.ended)) return undefined;
      const changed = this.#changed.promise;
      if (this.#leftBytes === undefined) await changed;
      else if (this.#leftBytes <= 0 || !(await this.#changesSoon(changed))) {
        this.destroy();
        return undefined;
      }
    }
  }

  #take(): Output | undefined {
    for (const source of this.#sources) {
      const data: Uint8Array | null = source.ended ? null : source.readable.read();
      if (data === null) continue;
      // The other one first next time: a stream that never pauses must not starve it.
      this.#sources.reverse();
      if (this.#leftBytes !== undefined) this.#leftBytes -= data.byteLength;
      return { stream: source.stream, data };
    }
    return undefined;
  }

  // An empty stream is being polled for; what its pipe holds is here after one turn of the event loop,
  // two when it was asked for during this one.
  async #changesSoon(changed: Promise<void>): Promise<boolean> {
    const quiet = (async () => {
      await nextTurn();
      await nextTurn();
      await nextTurn();
    })();
    return Promise.race([changed.then(() => true), quiet.then(() => false)]);
  }

  #wake(): void {
    this.#changed.resolve();
    this.#changed = Promise.withResolvers<void>();
  }
}
