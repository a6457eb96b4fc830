import { SCOPES } from "@coppice/core";

/** What a key may be used for. */
export type Scope = (typeof SCOPES)[number];

/** Scopes of a key; each includes those before it. */
export const KEY_SCOPES = ["read", "exec", "admin"] as const;

export type KeyScope = (typeof KEY_SCOPES)[number];

const GRANTED: Readonly<Record<KeyScope, readonly Scope[]>> = {
  read: ["read"],
  exec: ["read", "write", "exec", "attach"],
  admin: SCOPES,
};

export function scopesOfKey(scopes: readonly KeyScope[]): ReadonlySet<Scope> {
  return new Set(scopes.flatMap((scope) => GRANTED[scope]));
}

export function isKeyScope(text: string): text is KeyScope {
  return (KEY_SCOPES as readonly string[]).includes(text);
}
