import type { BootProblem } from "../../kernel/errors.js";
import { type ServedRoute, Surface, type SurfaceOptions } from "./surface.js";
import { CODE_PORT, ENVD_PORT, type Listener } from "./targets.js";

/** Surfaces that plugins of the project fill; a configuration need not have a listener for each. */
const STANDARD_SURFACES = ["api", "envd", "code", "ops", "volumes"];

export class Surfaces {
  readonly #options: SurfaceOptions;
  readonly #surfaces = new Map<string, Surface>();
  /** Ports inside every sandbox that the server itself answers, by surface. */
  readonly #ports = new Map([
    [ENVD_PORT, "envd"],
    [CODE_PORT, "code"],
  ]);

  constructor(options: SurfaceOptions) {
    this.#options = options;
  }

  get(name: string): Surface {
    let surface = this.#surfaces.get(name);
    if (surface === undefined) {
      surface = new Surface(name, this.#options);
      this.#surfaces.set(name, surface);
    }
    return surface;
  }

  /** @throws Error when another surface answers that port. */
  claimPort(port: number, name: string): void {
    const owner = this.#ports.get(port) ?? name;
    if (owner !== name)
      throw new Error(`port ${port} of a sandbox is answered by surface '${owner}' already`);
    this.#ports.set(port, name);
  }

  /** Surfaces that may answer requests addressed to a sandbox. */
  get addressed(): readonly string[] {
    return [...new Set(this.#ports.values())];
  }

  /** The surface that answers a port of a sandbox; undefined for a port of the sandbox itself. */
  ofPort(port: number): Surface | undefined {
    const name = this.#ports.get(port);
    const surface = name === undefined ? undefined : this.#surfaces.get(name);
    return surface?.isServed === true ? surface : undefined;
  }

  routes(): readonly ServedRoute[] {
    return [...this.#surfaces.values()].flatMap((surface) => surface.routes());
  }

  /** Ends the registration by plugins. */
  freeze(): void {
    for (const surface of this.#surfaces.values()) surface.freeze();
  }

  collisions(): readonly BootProblem[] {
    return [...this.#surfaces.values()].flatMap((surface) => surface.collisions());
  }

  /**
   * Problems: surfaces with routes that no listener and no port of a sandbox leads to. @param listeners their names.
   */
  unreachable(listeners: readonly string[]): readonly BootProblem[] {
    const known = new Set([...STANDARD_SURFACES, ...this.addressed, ...listeners]);
    const unknown = [...this.#surfaces.values()].filter(({ name }) => !known.has(name));
    return unknown.flatMap(({ name, plugins }) =>
      plugins.map((plugin) => ({
        message: `plugin '${plugin}' serves on surface '${name}', which no listener has; there are ${[...known].join(", ")}`,
      })),
    );
  }

  /** Names of listeners that would serve nothing but requests addressed to a sandbox. */
  unserved(listeners: readonly string[]): readonly string[] {
    return listeners.filter((name) => !STANDARD_SURFACES.includes(name) && !this.#surfaces.has(name));
  }

  seal(): void {
    for (const surface of this.#surfaces.values()) surface.seal();
  }
}

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
