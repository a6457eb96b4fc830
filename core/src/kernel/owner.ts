import { AsyncLocalStorage } from "node:async_hooks";

const owners = new AsyncLocalStorage<string>();

/**
 * Runs something that a plugin gave the kernel. Whatever it starts (timers, sockets, promises) stays attributed
 * to that plugin, so an error that nobody catches can be reported by its name.
 */
export function runAs<T>(owner: string, run: () => T): T {
  return owners.run(owner, run);
}

/** The plugin whose code runs, `core` when there is none. */
export function currentOwner(): string {
  return owners.getStore() ?? "core";
}
