import type { Tenants } from "./tenants.js";

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
