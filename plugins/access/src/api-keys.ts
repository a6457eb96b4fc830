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
  readonly #configured: ReadonlyMap<string, Principal>;
  readonly #options: Pick<ApiKeysOptions, "store" | "clock">;

  constructor(options: ApiKeysOptions) {
    this.#options = options;
    this.#configured = new Map(
      options.configured.map((key, index) => [
        digestOf(key),
        { tenant: DEFAULT_TENANT, name: `configured-${index + 1}`, scopes: new Set(SCOPES) },
      ]),
    );
  }

  /** Who presents a key; undefined for one that was never made, has expired or is revoked. */
  find(key: string): Principal | undefined {
    const digest = digestOf(key);
    const configured = this.#configured.get(digest);
    if (configured !== undefined) return configured;
    const stored = this.#options.store().find(digest, this.#options.clock.now());
    return stored && { tenant: stored.tenant, name: stored.name, scopes: scopesOfKey(stored.scopes) };
  }
}
