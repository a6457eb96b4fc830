import type { BootProblem } from "../kernel/errors.js";
import { Surface, type SurfaceOptions } from "./surface.js";
import { CODE_PORT, ENVD_PORT } from "./targets.js";

/** The ports inside every sandbox that the server itself answers, by the surface that does. */
const SURFACE_PORTS: ReadonlyMap<number, string> = new Map([
  [ENVD_PORT, "envd"],
  [CODE_PORT, "code"],
]);

/** The surfaces of a server, by name. */
export class Surfaces {
  readonly #options: SurfaceOptions;
  readonly #surfaces = new Map<string, Surface>();

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

  /** The surface that answers a port of a sandbox; undefined when the port is the sandbox's own. */
  ofPort(port: number): Surface | undefined {
    const name = SURFACE_PORTS.get(port);
    const surface = name === undefined ? undefined : this.#surfaces.get(name);
    return surface?.isServed === true ? surface : undefined;
  }

  collisions(): readonly BootProblem[] {
    return [...this.#surfaces.values()].flatMap((surface) => surface.collisions());
  }

  seal(): void {
    for (const surface of this.#surfaces.values()) surface.seal();
  }
}
