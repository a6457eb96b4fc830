import type { SandboxError } from "@coppice/core/backend";
import { type Failure, readFailure } from "./agent-error.js";
import type { Channel } from "./channel.js";
import { ProtocolError, Reply } from "./frames.js";

/** An answer, or why there is none. */
export type Answer =
  | { readonly payload: Buffer; readonly failure?: undefined }
  | { readonly failure: Failure };

/** A request that gets one answer of one type, or an error. */
export class OneAnswer implements Channel {
  readonly #type: number;
  readonly #settled: () => void;
  readonly #answer = Promise.withResolvers<Answer>();

  /** @param settled called when the id is free again. */
  constructor(type: number, settled: () => void) {
    this.#type = type;
    this.#settled = settled;
  }

  get answer(): Promise<Answer> {
    return this.#answer.promise;
  }

  receive(type: number, payload: Buffer): void {
    if (type !== this.#type && type !== Reply.Error) throw new ProtocolError(`frame ${type} for a request`);
    const answer = type === Reply.Error ? { failure: readFailure(payload) } : { payload };
    this.#settled();
    this.#answer.resolve(answer);
  }

  lost(reason: SandboxError): void {
    this.#answer.reject(reason);
  }
}
