import { AsyncLocalStorage } from "node:async_hooks";

const owners = new AsyncLocalStorage<string>();

/**
 * Runs code of a plugin. Timers, sockets and promises that it starts stay attributed to that plugin, so that an
 * uncaught error can be reported under its name.
 */
export function runAs<T>(owner: string, run: () => T): T {
  return owners.run(owner, run);
}

/** The plugin whose code runs, or `core`. */
export function currentOwner(): string {
  return owners.getStore() ?? "core";
}
