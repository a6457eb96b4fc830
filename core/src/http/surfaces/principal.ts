/** Permission of a credential; each route requires one. */
export type Scope = "read" | "write" | "exec" | "attach" | "admin";

export const SCOPES: readonly Scope[] = ["read", "write", "exec", "attach", "admin"];

export const PRINCIPAL_TYPES = ["user", "service", "agent"] as const;
export type PrincipalType = (typeof PRINCIPAL_TYPES)[number];

/** Sender of a request, as a guard authenticated it. */
export interface Principal {
  /** Owns what it makes, and sees only what it owns. */
  readonly tenant: string;
  /** For logs and the audit: a key's name, a token's subject. Not a secret. */
  readonly name: string;
  /** `admin` includes every other. */
  readonly scopes: ReadonlySet<Scope>;
  /** Kind of the subject, where the credential says it. */
  readonly type?: PrincipalType | undefined;
  /** Subject that acts for the principal, where the credential names one. */
  readonly actor?: string | undefined;
}
