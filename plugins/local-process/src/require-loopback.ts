import { BootError, type Listener } from "@coppice/core";

/**
 * Refuses to expose sandboxes without isolation to other machines.
 * @throws BootError with every reachable listener that is not marked `insecure`.
 */
export function requireLoopback(listeners: readonly Listener[]): void {
  const open = listeners.filter((listener) => !listener.isLoopback && !listener.insecure);
  if (open.length === 0) return;
  throw new BootError(
    open.map(({ name, host }) => ({
      message:
        `local-process does not isolate sandboxes from this host, and listener '${name}' on ${host} can be reached ` +
        "from other machines: bind it to 127.0.0.1, or set `insecure: true` on the listener or on local-process",
    })),
  );
}
