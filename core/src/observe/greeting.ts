import { createToken } from "../kernel/token.js";

/** Text for the person who started the server by hand, printed once it serves. Not a log: programs do not read it. */
export interface Greeting {
  /** @param lines called when the listeners have their ports. */
  add(lines: () => readonly string[]): void;
  /**
   * Environment variables that point a client at this server, shown together for pasting.
   * @param variables called like `lines`. Values are quoted for a shell where necessary.
   */
  addVariables(variables: () => Readonly<Record<string, string>>): void;
}

export const Greeting = createToken<Greeting>("greeting");

/** Collects plugins' lines in set-up order. */
export class CollectedGreeting implements Greeting {
  readonly #parts: (() => readonly string[])[] = [];
  readonly #variables: (() => Readonly<Record<string, string>>)[] = [];

  add(lines: () => readonly string[]): void {
    this.#parts.push(lines);
  }

  addVariables(variables: () => Readonly<Record<string, string>>): void {
    this.#variables.push(variables);
  }

  lines(): readonly string[] {
    const exports = this.#variables
      .flatMap((variables) => Object.entries(variables()))
      .map(([name, value]) => `  export ${name}=${value}`);
    const heading = exports.length === 0 ? [] : ["Point an E2B SDK at it:"];
    return [...this.#parts.flatMap((part) => part()), ...heading, ...exports];
  }
}
