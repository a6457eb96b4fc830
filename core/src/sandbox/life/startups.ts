import { createToken } from "../../kernel/token.js";
import type { LiveSandbox } from "../model/live-sandbox.js";

/** A plugin's part in the start of a sandbox: of a new one, and of one that starts again with its files. */
export interface Startup {
  /**
   * Runs before the sandbox is handed to its creator; it is complete then, and no client knows it. A failure fails the
   * creation.
   */
  start(sandbox: LiveSandbox, signal: AbortSignal): Promise<void>;
  /** True for sandboxes that it has something to do for. */
  concerns(record: LiveSandbox["record"]): boolean;
}

/** Startups of all plugins: a plugin adds its own during set-up. */
export interface Startups {
  add(startup: Startup): void;
}

export const Startups = createToken<Startups>("startups");

/** The startups of this server. */
export class AddedStartups implements Startups {
  readonly #added: Startup[] = [];

  add(startup: Startup): void {
    this.#added.push(startup);
  }

  concern(record: LiveSandbox["record"]): boolean {
    return this.#added.some((startup) => startup.concerns(record));
  }

  /** Runs those that the sandbox concerns, one after the other. @throws the first error */
  async run(sandbox: LiveSandbox, signal: AbortSignal): Promise<void> {
    for (const startup of this.#added) {
      if (startup.concerns(sandbox.record)) await startup.start(sandbox, signal);
    }
  }
}
