import { type Clock, fulfilledWithin, type HeldMemory, SandboxError } from "@coppice/core";
import type { WatchEvent } from "@coppice/core/backend";

/** Of an event without its name. */
const EVENT_BYTES = 100;

/** Events on their way from a watch to its one reader, never more than `limit`. */
export class EventBuffer {
  readonly #limit: number;
  readonly #held: HeldMemory | undefined;
  #place: ReturnType<HeldMemory["place"]> | undefined;
  #events: WatchEvent[] = [];
  #bytes = 0;
  #failure: SandboxError | undefined;
  #wake: (() => void) | undefined;

  /** @param held counts the events that wait; uncounted when absent. */
  constructor(limit: number, held?: HeldMemory) {
    this.#limit = limit;
    this.#held = held;
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
    this.#bytes += EVENT_BYTES + event.name.length;
    this.#place ??= this.#held?.place();
    this.#place?.resize(this.#bytes);
    this.#wake?.();
  }

  /** Drops the events that wait, and fails. */
  drop(): void {
    this.#clear();
    this.fail(
      new SandboxError(
        "events_lost",
        "events were lost: files.maxHeldEvents is full; watch the directory again",
      ),
    );
  }

  /** Ends it with an error, after the events that wait. The first failure stays. */
  fail(error: SandboxError): void {
    this.#failure ??= error;
    this.#wake?.();
  }

  /** Everything that waits, oldest first. @throws SandboxError when the watch has failed and nothing is left. */
  take(): readonly WatchEvent[] {
    if (this.#events.length === 0 && this.#failure !== undefined) throw this.#failure;
    return this.#clear();
  }

  #clear(): readonly WatchEvent[] {
    const events = this.#events;
    this.#events = [];
    this.#bytes = 0;
    this.#place?.[Symbol.dispose]();
    this.#place = undefined;
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
