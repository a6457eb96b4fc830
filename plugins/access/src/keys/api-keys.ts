import { type Clock, DEFAULT_TENANT, type Principal, SCOPES } from "@coppice/core";
import { digestOf } from "./api-key.js";
import { scopesOfKey } from "./key-scopes.js";
import type { KeyStore } from "./key-store.js";

export interface ApiKeysOptions {
  /** Keys of the configuration: the default tenant's, with all scopes. */
  readonly configured: readonly string[];
  /** Called at each request for all other keys. */
  readonly store: () => KeyStore;
  readonly clock: Clock;
}

export class ApiKeys {
  readonly #configured = new Map<string, Principal>();
  readonly #options: Pick<ApiKeysOptions, "store" | "clock">;

  constructor(options: ApiKeysOptions) {
    this.#options = options;
    for (const [index, key] of options.configured.entries()) this.add(key, `configured-${index + 1}`);
  }

  /** Adds a key of the default tenant with all scopes. */
  add(key: string, name: string): void {
    this.#configured.set(digestOf(key), { tenant: DEFAULT_TENANT, name, scopes: new Set(SCOPES) });
  }

  /** Tenants that have a key. */
  tenants(): readonly string[] {
    const { store, clock } = this.#options;
    return [...(this.#configured.size > 0 ? [DEFAULT_TENANT] : []), ...store().tenants(clock.now())];
  }

  /** Finds the principal of a key; undefined for an unknown, expired or revoked one. */
  find(key: string): Principal | undefined {
    const digest = digestOf(key);
    const configured = this.#configured.get(digest);
    if (configured !== undefined) return configured;
    const stored = this.#options.store().find(digest, this.#options.clock.now());
    return stored && { tenant: stored.tenant, name: stored.name, scopes: scopesOfKey(stored.scopes) };
  }
}
