/** A typed name for a service: its value is the key in every scope. */
export type Token<T> = symbol & { readonly __service?: T };

/**
 * Makes the token of a service.
 *
 * Built on `Symbol.for`, so two installed copies of core agree on it.
 * @param id kebab-case, unique in an installation, e.g. `"commands"`.
 */
export function createToken<T>(id: string): Token<T> {
  return Symbol.for(`coppice.${id}`);
}

export function tokenName(token: symbol): string {
  return (token.description ?? "unnamed").replace(/^coppice\./, "");
}
