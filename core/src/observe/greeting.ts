import { createToken } from "../kernel/token.js";

/** What a server tells whoever started it by hand, once it serves. Not a log: nothing reads it but a person. */
export interface Greeting {
  /** @param lines asked for when the listeners have their ports. */
  add(lines: () => readonly string[]): void;
}

export const Greeting = createToken<Greeting>("greeting");

/** Collects what plugins have to say, in the order in which they were set up. */
export class CollectedGreeting implements Greeting {
  readonly #parts: (() => readonly string[])[] = [];

  add(lines: () => readonly string[]): void {
    this.#parts.push(lines);
  }

  lines(): readonly string[] {
    return this.#parts.flatMap((part) => part());
  }
}
