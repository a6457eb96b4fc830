import { createHmac, createSecretKey, type KeyObject } from "node:crypto";
import { secretEqual } from "@coppice/core";

/** What a text is for, and its parts: what proves one text proves no other. */
export type Proven = readonly [purpose: "record" | "request", ...parts: readonly (string | number | null)[]];

/** Proofs of one text, by the names of the secrets that made them. */
type Proofs = Readonly<Record<string, string>>;

/**
 * The secrets of a fleet. They are never sent: whoever has one proves a text by it. Several are valid at a time while they
 * are changed; the first of those that both sides have is used.
 */
export class FleetSecrets {
  /** By a name that does not tell it. */
  readonly #secrets: ReadonlyMap<string, KeyObject>;

  constructor({
    secret,
    previousSecrets = [],
  }: {
    readonly secret: string;
    readonly previousSecrets?: readonly string[];
  }) {
    const keys = [secret, ...previousSecrets].map((one) => createSecretKey(one, "utf8"));
    this.#secrets = new Map(keys.map((key) => [mac(key, ["name"]).slice(0, 8), key]));
  }

  /** The proofs of a text for all who have any of the secrets. */
  proofsOf(text: Proven): Proofs {
    return Object.fromEntries([...this.#secrets].map(([name, secret]) => [name, mac(secret, text)]));
  }

  /** The proof of a text by one secret. @throws Error for a name that none of them has */
  proofOf(text: Proven, name: string): string {
    const secret = this.#secrets.get(name);
    if (secret === undefined) throw new Error(`the fleet has no secret '${name}'`);
    return mac(secret, text);
  }

  /** The name of the first secret that proves a text; undefined where none does. */
  proverOf(text: Proven, proofs: Proofs): string | undefined {
    for (const [name, secret] of this.#secrets) {
      const given = Object.hasOwn(proofs, name) ? proofs[name] : undefined;
      if (given !== undefined && secretEqual(mac(secret, text), given)) return name;
    }
    return undefined;
  }
}

function mac(secret: KeyObject, text: readonly unknown[]): string {
  return createHmac("sha256", secret).update(JSON.stringify(text)).digest("base64url");
}
