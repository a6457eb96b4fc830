import { createToken } from "../kernel/token.js";

/** Names of tenants that have credentials; `any` where an identity provider may name further ones. */
type TenantSource = () => readonly string[] | "any";

/** What a tenant would have of a bound of the server. */
interface Holding {
  readonly tenant: string;
  /** The bound, for all tenants together. */
  readonly most: number;
  /** Taken by all of them. */
  readonly used: number;
  /** Taken by this one. */
  readonly own: number;
  /** To be taken now; 1 when absent. */
  readonly more?: number;
}

/**
 * The tenants of a server, and how they share its bounds. One that is alone may have all of a bound. Of several each may
 * take only as much as it leaves free: the first half of it, a second one half of the rest. So none that has nothing is
 * refused because another one has everything.
 */
export interface Tenants {
  add(source: TenantSource): void;
  /** The limit that a tenant has reached, for a message in which it stands in parentheses; undefined when it may take. */
  refusal(holding: Holding): string | undefined;
}

export const Tenants = createToken<Tenants>("tenants");

/** A new tenant has its share after that time at the latest, and at once when it takes something. */
const ASK_AGAIN_MS = 1000;

/** The tenants that sources name, and those that have taken something: they may be known to another server alone. */
export class KnownTenants implements Tenants {
  readonly #sources: TenantSource[] = [];
  readonly #seen = new Set<string>();
  readonly #own: string | undefined;
  /** The last answer of the sources, some of which look into a store. */
  #several = { are: false, askedAtMs: -Infinity };

  /** @param own tenant of what the server does by itself: it counts only where it has credentials. */
  constructor(own?: string) {
    this.#own = own;
  }

  add(source: TenantSource): void {
    this.#sources.push(source);
    this.#several.askedAtMs = -Infinity;
  }

  refusal({ tenant, most, used, own, more = 1 }: Holding): string | undefined {
    // Two are enough to know that there are several.
    if (this.#seen.size < 2 && tenant !== this.#own && !this.#seen.has(tenant)) {
      this.#seen.add(tenant);
      this.#several.askedAtMs = -Infinity;
    }
    if (used + more > most) return String(most);
    // The last one of an odd number is nobody's half.
    if (own + more <= most - used - more + 1 || !this.#areSeveral()) return undefined;
    return `${own} of ${most}, the rest is for other tenants`;
  }

  #areSeveral(): boolean {
    const nowMs = performance.now();
    if (nowMs - this.#several.askedAtMs > ASK_AGAIN_MS)
      this.#several = { are: this.#ask(), askedAtMs: nowMs };
    return this.#several.are;
  }

  #ask(): boolean {
    const names = new Set(this.#seen);
    for (const source of this.#sources) {
      const found = source();
      if (found === "any") return true;
      for (const name of found) names.add(name);
    }
    return names.size > 1;
  }
}

/** Owners of whom there are always others, whatever their names are. */
export function severalTenants(): Tenants {
  const tenants = new KnownTenants();
  tenants.add(() => "any");
  return tenants;
}

/**
 * The most that each owner may keep, so that all together keep `most`: who has less keeps everything, and the largest
 * lose first. Infinite where that is enough for all.
 */
export function fairShare(amounts: Iterable<number>, most: number): number {
  const sorted = [...amounts].toSorted((a, b) => a - b);
  let left = most;
  for (const [index, amount] of sorted.entries()) {
    const share = left / (sorted.length - index);
    if (amount > share) return share;
    left -= amount;
  }
  return Infinity;
}

/** What is to go of a list, the oldest first, so that each owner keeps its fair share. */
export function unfairlyKept<T>(
  oldestFirst: readonly T[],
  { most, ownerOf }: { readonly most: number; readonly ownerOf: (kept: T) => string },
): readonly T[] {
  const left = new Map<string, number>();
  for (const kept of oldestFirst) left.set(ownerOf(kept), (left.get(ownerOf(kept)) ?? 0) + 1);
  const share = fairShare(left.values(), most);
  return oldestFirst.filter((kept) => {
    const own = left.get(ownerOf(kept)) ?? 0;
    if (own <= share) return false;
    left.set(ownerOf(kept), own - 1);
    return true;
  });
}

/** What is taken of a bound of the server, by owner. Without `tenants` owners have no shares: who comes first has it. */
export class Shares {
  readonly #most: number;
  readonly #tenants: Tenants | undefined;
  readonly #own = new Map<string, number>();
  #used = 0;

  constructor(most: number, tenants?: Tenants) {
    this.#most = most;
    this.#tenants = tenants;
  }

  /** Why an owner may take no more, as `Tenants.refusal` has it; undefined when it has taken that much. */
  take(owner: string, more = 1): string | undefined {
    const holding = {
      tenant: owner,
      most: this.#most,
      used: this.#used,
      own: this.#own.get(owner) ?? 0,
      more,
    };
    const isTooMuch = holding.used + more > this.#most;
    // The server itself is no tenant.
    const refused = owner === "" ? undefined : this.#tenants?.refusal(holding);
    const refusal = refused ?? (isTooMuch ? String(this.#most) : undefined);
    if (refusal === undefined) this.#change(owner, more);
    return refusal;
  }

  /** True when nobody may take more. */
  get isFull(): boolean {
    return this.#used >= this.#most;
  }

  give(owner: string, less = 1): void {
    this.#change(owner, -less);
  }

  #change(owner: string, by: number): void {
    this.#used += by;
    const own = (this.#own.get(owner) ?? 0) + by;
    if (own > 0) this.#own.set(owner, own);
    else this.#own.delete(owner);
  }
}

/**
 * Names of tenants in metrics, where each name costs series for as long as the server runs: the first ones since its start
 * have their own, all others share one.
 */
export class NamedTenants {
  readonly #most: number;
  readonly #named = new Set<string>();

  constructor(most: number) {
    this.#most = most;
  }

  /** The tenant's own name, or the empty one, which no tenant has. */
  nameOf(tenant: string): string {
    if (this.#named.size < this.#most) this.#named.add(tenant);
    return this.#named.has(tenant) ? tenant : "";
  }
}
