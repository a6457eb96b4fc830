/** Permission of a credential; each route asks for one. */
export type Scope = "read" | "write" | "exec" | "attach" | "admin";

/** Every scope there is. */
export const SCOPES: readonly Scope[] = ["read", "write", "exec", "attach", "admin"];

/** Sender of a request, as a guard found out. */
export interface Principal {
  /** Owns what it makes, and sees only what it owns. */
  readonly tenant: string;
  /** For logs and the audit: a key's name, a token's subject. No secret. */
  readonly name: string;
  /** `admin` stands for every other. */
  readonly scopes: ReadonlySet<Scope>;
}
