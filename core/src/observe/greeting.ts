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
export function collectGreeting() {
  const parts: (() => readonly string[])[] = [];
  const variables: (() => Readonly<Record<string, string>>)[] = [];
  return {
    add: (lines) => void parts.push(lines),
    addVariables: (some) => void variables.push(some),
    lines(): readonly string[] {
      const exports = variables
        .flatMap((some) => Object.entries(some()))
        .map(([name, value]) => `  export ${name}=${value}`);
      const heading = exports.length === 0 ? [] : ["Point an E2B SDK at it:"];
      return [...parts.flatMap((part) => part()), ...heading, ...exports];
    },
  } satisfies Greeting & { lines(): readonly string[] };
}
