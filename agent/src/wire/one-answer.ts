import type { SandboxError } from "@coppice/core/backend";
import { type Failure, readFailure } from "./agent-error.js";
import type { Channel } from "./channel.js";
import { PayloadReader, ProtocolError, Reply } from "./frames.js";

/** An answer or its failure. */
export type Answer<T> = { readonly value: T; readonly failure?: undefined } | { readonly failure: Failure };

/** Expected form of an answer. */
export interface Expected<T> {
  readonly type: number;
  /** Reads the whole payload. @throws ProtocolError */
  readonly read: (payload: PayloadReader) => T;
}

/** A request with one answer of one type, or an error. */
export class OneAnswer<T> implements Channel {
  readonly #expected: Expected<T>;
  readonly #settled: () => void;
  readonly #answer = Promise.withResolvers<Answer<T>>();

  /** @param settled called when the id is free again. */
  constructor(expected: Expected<T>, settled: () => void) {
    this.#expected = expected;
    this.#settled = settled;
  }

  get answer(): Promise<Answer<T>> {
    return this.#answer.promise;
  }

  receive(type: number, payload: Buffer): void {
    const answer = this.#read(type, payload);
    this.#settled();
    this.#answer.resolve(answer);
  }

  lost(reason: SandboxError): void {
    this.#answer.reject(reason);
  }

  // On arrival, because a malformed answer ends the connection, not only this request.
  #read(type: number, payload: Buffer): Answer<T> {
    if (type === Reply.Error) return { failure: readFailure(payload) };
    if (type !== this.#expected.type) throw new ProtocolError(`frame ${type} for a request`);
    const reader = new PayloadReader(payload);
    const value = this.#expected.read(reader);
    reader.end();
    return { value };
  }
}
