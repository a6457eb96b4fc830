import { type Clock, DEFAULT_TENANT, type Principal, SCOPES } from "@coppice/core";
import { digestOf } from "./api-key.js";
import { scopesOfKey } from "./key-scopes.js";
import type { KeyStore } from "./key-store.js";

export interface ApiKeysOptions {
  /** Of the configuration: the default tenant's, for everything. */
  readonly configured: readonly string[];
  /** Asked for everything else, at each request. */
  readonly store: () => KeyStore;
  readonly clock: Clock;
}

/** The keys that let a client in. */
export class ApiKeys {
  readonly #configured = new Map<string, Principal>();
  readonly #options: Pick<ApiKeysOptions, "store" | "clock">;

  constructor(options: ApiKeysOptions) {
    this.#options = options;
    for (const [index, key] of options.configured.entries()) this.add(key, `configured-${index + 1}`);
  }

  /** One more that is the default tenant's, for everything. */
  add(key: string, name: string): void {
    this.#configured.set(digestOf(key), { tenant: DEFAULT_TENANT, name, scopes: new Set(SCOPES) });
  }

  /** Finds the principal of a key; undefined for one that was never made, has expired or is revoked. */
  find(key: string): Principal | undefined {
    const digest = digestOf(key);
    const configured = this.#configured.get(digest);
    if (configured !== undefined) return configured;
    const stored = this.#options.store().find(digest, this.#options.clock.now());
    return stored && { tenant: stored.tenant, name: stored.name, scopes: scopesOfKey(stored.scopes) };
  }
}
