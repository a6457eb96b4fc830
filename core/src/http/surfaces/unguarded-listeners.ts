import type { BootProblem } from "../../kernel/errors.js";
import type { Surfaces } from "./surfaces.js";
import type { Listener } from "./targets.js";

/**
 * Listeners that other machines can reach with a surface that no guard protects, unless the operator confirmed them.
 */
export function unguardedListeners(
  listeners: readonly Listener[],
  surfaces: Surfaces,
  at: (listener: string) => string,
): readonly BootProblem[] {
  return listeners.flatMap((listener) => {
    if (listener.isLoopback || listener.insecure) return [];
    // Requests addressed to a sandbox come in through every listener.
    const open = [...new Set([listener.name, ...surfaces.addressed])].filter((name) => {
      const surface = surfaces.get(name);
      return surface.isServed && !surface.isGuarded;
    });
    return open.map((name) => ({
      at: at(listener.name),
      message:
        `listener '${listener.name}' is on ${listener.host}, which others can reach, and surface '${name}' has no authentication: ` +
        `bind it to 127.0.0.1, configure authentication (plugins access and envd-compat), or say listeners.${listener.name}.insecure: true`,
    }));
  });
}
