import { posix } from "node:path";
import type { Clock } from "@coppice/core";
import type { WatchEvent } from "@coppice/core/backend";

export interface DeparturesOptions {
  readonly clock: Clock;
  /** How long an entry that is gone may take to turn up under another name. */
  readonly moveMs: number;
  readonly emit: (event: WatchEvent) => void;
}

interface Departure {
  readonly name: string;
  /** What it came to; undefined while that is open. */
  events: readonly WatchEvent[] | undefined;
  readonly onGone: () => readonly WatchEvent[];
  readonly settle: (events: readonly WatchEvent[]) => void;
}

/**
 * Events on their way out, in the order in which they happened. The host tells of a move in two parts: an entry that is
 * gone waits here for a while whether it turns up under another name, and what came after it waits behind it.
 */
export class Departures {
  readonly #options: DeparturesOptions;
  readonly #queue: Pick<Departure, "events">[] = [];
  readonly #byIdentity = new Map<string, Departure>();
  readonly #byName = new Map<string, Departure>();

  constructor(options: DeparturesOptions) {
    this.#options = options;
  }

  report(events: readonly WatchEvent[]): void {
    if (events.length === 0) return;
    this.#queue.push({ events });
    this.#flush();
  }

  /** Whether it is open what became of what had this name, or of a directory above it. */
  has(name: string): boolean {
    if (this.#byName.size === 0) return false;
    for (let at = name; at !== "."; at = posix.dirname(at)) if (this.#byName.has(at)) return true;
    return false;
  }

  /** The name that an entry with this identity had before it went, if it did. */
  nameOf(identity: string): string | undefined {
    return this.#byIdentity.get(identity)?.name;
  }

  /** An entry is gone. @param onGone called when it has not turned up in time: what that comes to. */
  depart(name: string, identity: string, onGone: () => readonly WatchEvent[]): void {
    const cancel = this.#options.clock.after(this.#options.moveMs, () => departure.settle(onGone()));
    const departure: Departure = {
      name,
      events: undefined,
      onGone,
      settle: (events) => {
        cancel();
        this.#byIdentity.delete(identity);
        this.#byName.delete(name);
        departure.events = events;
        this.#flush();
      },
    };
    this.#byIdentity.set(identity, departure);
    this.#byName.set(name, departure);
    this.#queue.push(departure);
  }

  /**
   * An entry has turned up.
   * @param events what that comes to, in the place of its departure.
   * @returns false when it was not gone.
   */
  arrive(identity: string | undefined, events: readonly WatchEvent[]): boolean {
    const departure = identity === undefined ? undefined : this.#byIdentity.get(identity);
    if (departure === undefined) return false;
    // What was below it went along, and nobody tells of that.
    this.#settleBelow(departure.name, () => []);
    departure.settle(events);
    return true;
  }

  /** Nothing that went from this name, or from below it, will turn up any more. */
  giveUp(name: string): void {
    this.#settleBelow(name, ({ onGone }) => onGone());
    const departure = this.#byName.get(name);
    departure?.settle(departure.onGone());
  }

  close(): void {
    for (const departure of this.#byName.values()) departure.settle([]);
  }

  #settleBelow(name: string, eventsOf: (departure: Departure) => readonly WatchEvent[]): void {
    for (const departure of this.#byName.values()) {
      if (departure.name.startsWith(`${name}/`)) departure.settle(eventsOf(departure));
    }
  }

  #flush(): void {
    for (let next = this.#queue[0]; next?.events !== undefined; next = this.#queue[0]) {
      this.#queue.shift();
      for (const event of next.events) this.#options.emit(event);
    }
  }
}
