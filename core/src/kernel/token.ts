/** A typed name for a service: its value is the key in every scope. */
export type Token<T> = symbol & { readonly __service?: T };

/**
 * Makes the token of a service.
 *
 * Built on `Symbol.for`, so two installed copies of a plugin agree on it.
 * @param id kebab-case, unique in an installation, e.g. `"commands"`.
 */
export function createToken<T>(id: string): Token<T> {
  return Symbol.for(`coppice.${id}`);
}

export function tokenName(token: symbol): string {
  return (token.description ?? "unnamed").replace(/^coppice\./, "");
}

/** A place that one plugin may fill, once. */
export interface Slot<T> {
  /** @throws Error when another plugin has filled it. */
  use(value: T): void;
  /** Undefined while nobody has filled it. */
  readonly used: T | undefined;
}

/** @param taken why a second plugin cannot fill it. */
export function createSlot<T>(taken: string): Slot<T> {
  let used: T | undefined;
  return {
    use(value) {
      if (used !== undefined) throw new Error(taken);
      used = value;
    },
    get used() {
      return used;
    },
  };
}
