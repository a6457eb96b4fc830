import type { SurfaceRequest } from "../surfaces/surface-request.js";
import { tenantOf } from "../surfaces/tenant-of.js";

/** A name for something that one of several servers has. */
export interface HeldName {
  readonly kind: string;
  /** An id, or a name that clients use. */
  readonly reference: string;
  /** Tenant of the request: for it, what others keep private does not exist. */
  readonly tenant: string;
}

/** A kind of things of which each server has its own, and whose names tell no server: templates, volumes. */
export interface Holding {
  readonly kind: string;
  /** The surface whose routes name them. */
  readonly surface: string;
  /** The reference in a path, as it is there; undefined for other paths. */
  inPath(pathname: string): string | undefined;
  /** True when this server has it, and the tenant may know. Also for a reference that is none: it is refused here. */
  has(reference: string, tenant: string): boolean | Promise<boolean>;
}

/** A request for what another server has: it is passed on. */
export class HeldElsewhere extends Error {
  override readonly name = "HeldElsewhere";
  readonly server: string;

  constructor(server: string) {
    super(`server '${server}' has it`);
    this.server = server;
  }
}

export class Holdings {
  readonly #all: Holding[] = [];

  add(holding: Holding): void {
    this.#all.push(holding);
  }

  async has({ kind, reference, tenant }: HeldName): Promise<boolean> {
    for (const holding of this.#all)
      if (holding.kind === kind && (await holding.has(reference, tenant))) return true;
    return false;
  }

  /** What the path of a request names. */
  namedBy(request: SurfaceRequest): HeldName | undefined {
    for (const holding of this.#all) {
      if (holding.surface !== request.surface) continue;
      const found = holding.inPath(request.url.pathname);
      if (found !== undefined)
        return { kind: holding.kind, reference: decoded(found), tenant: tenantOf(request) };
    }
    return undefined;
  }
}

/** The text itself where it is not encoded well: its route refuses it. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
