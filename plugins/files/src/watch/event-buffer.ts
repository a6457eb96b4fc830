import { type Clock, fulfilledWithin, SandboxError } from "@coppice/core";
import type { WatchEvent } from "@coppice/core/backend";

/** Events on their way from a watch to its one reader, never more than `limit`. */
export class EventBuffer {
  readonly #limit: number;
  #events: WatchEvent[] = [];
  #failure: SandboxError | undefined;
  #wake: (() => void) | undefined;

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Past the limit the buffer fails: a reader that missed events gets an error. */
  push(event: WatchEvent): void {
    if (this.#failure !== undefined) return;
    if (this.#events.length >= this.#limit) {
      const text = `events were lost: more than ${this.#limit} waited to be read; watch the directory again`;
      this.fail(new SandboxError("events_lost", text));
      return;
    }
    this.#events.push(event);
    this.#wake?.();
  }

  /** Ends it with an error, after the events that wait. The first failure stays. */
  fail(error: SandboxError): void {
    this.#failure ??= error;
    this.#wake?.();
  }

  /** Everything that waits, oldest first. @throws SandboxError when the watch has failed and nothing is left. */
  take(): readonly WatchEvent[] {
    if (this.#events.length === 0 && this.#failure !== undefined) throw this.#failure;
    const events = this.#events;
    this.#events = [];
    return events;
  }

  /** Resolves when `take` has events, after `timeoutMs`, or when the signal aborts. */
  async wait(options: {
    readonly clock: Clock;
    readonly timeoutMs: number;
    readonly signal: AbortSignal;
  }): Promise<void> {
    if (this.#events.length > 0 || this.#failure !== undefined || options.signal.aborted) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    const wake = (): void => resolve();
    options.signal.addEventListener("abort", wake, { once: true });
    this.#wake = wake;
    try {
      await fulfilledWithin(promise, options);
    } finally {
      this.#wake = undefined;
      options.signal.removeEventListener("abort", wake);
    }
  }
}
