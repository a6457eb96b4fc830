import { createToken } from "../kernel/token.js";

/** Text for the person who started the server by hand, printed once it serves. It is no log: programs do not read it. */
export interface Greeting {
  /** @param lines asked for when the listeners have their ports. */
  add(lines: () => readonly string[]): void;
  /**
   * Environment variables that point a client at this server, shown together for pasting.
   * @param variables asked for as lines are. Values are a shell's: quoted where they have to be.
   */
  addVariables(variables: () => Readonly<Record<string, string>>): void;
}

export const Greeting = createToken<Greeting>("greeting");

/** Collects what plugins have to say, in the order in which they were set up. */
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
