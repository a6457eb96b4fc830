// tsyringe reads its metadata through this polyfill, which has to be loaded first.
import "reflect-metadata";
import { container, inject, injectable, instanceCachingFactory, type DependencyContainer } from "tsyringe";
import { tokenName } from "./token.js";

export { inject, injectable };

/** A class whose constructor parameters all carry `@inject(Token)`. */
// A constructor type has to be open in its parameters: `unknown[]` would refuse every class with one.
// oxlint-disable-next-line typescript/no-explicit-any
export type Class<T> = new (...parameters: any[]) => T;
type Key = symbol | Class<unknown>;

/**
 * The services of one plugin: what it bound, and what it required. Sealed: nothing else can be
 * resolved, and no instance reaches another scope except as a value.
 *
 * The only file that knows tsyringe. Its container tree is not used for sharing (a singleton first
 * resolved through a child captures that child), nor its `dispose` (concurrent, stops at the first throw).
 */
export class Scope {
  readonly #owner: string;
  readonly #container: DependencyContainer = container.createChildContainer();
  readonly #classes = new Map<Key, Class<unknown>>();

  constructor(owner: string) {
    this.#owner = owner;
  }

  /** Binds a class under a key: one instance, built when it is first resolved. */
  bindClass(key: Key, implementation: Class<unknown>): void {
    this.#refuseTwice(key);
    this.#classes.set(key, implementation);
    // The key may be the class itself, so it is built by hand: resolving it here would recurse.
    const build = (): unknown => {
      const [problem] = this.#problemsOf(implementation);
      if (problem !== undefined) throw new Error(problem);
      return new implementation(...injectedKeys(implementation).map((key) => key && this.resolve(key)));
    };
    this.#container.register(key, { useFactory: instanceCachingFactory(build) });
  }

  bindValue(key: symbol, value: unknown): void {
    this.#refuseTwice(key);
    this.#container.register(key, { useValue: value });
  }

  has(key: Key): boolean {
    // Not recursive: a parent is the global container, which scopes do not use.
    return this.#container.isRegistered(key);
  }

  /** @throws Error naming the service and the plugin when this scope does not hold it. */
  resolve<T>(key: Key): T {
    if (!this.has(key)) {
      throw new Error(`plugin '${this.#owner}' neither binds nor requires '${keyName(key)}'`);
    }
    return this.#container.resolve<T>(key as symbol);
  }

  /** Constructor parameters that nothing in this scope can fill, as messages. */
  unfilled(): readonly string[] {
    return [...this.#classes.values()].flatMap((implementation) => this.#problemsOf(implementation));
  }

  #problemsOf(implementation: Class<unknown>): readonly string[] {
    return injectedKeys(implementation).flatMap((key, index) => {
      if (key !== undefined && this.has(key)) return [];
      const problem =
        key === undefined
          ? "has no @inject(Token)"
          : `needs '${keyName(key)}', which '${this.#owner}' neither binds nor requires`;
      return `${implementation.name}: constructor parameter ${index + 1} ${problem}`;
    });
  }

  #refuseTwice(key: Key): void {
    if (this.has(key)) throw new Error(`plugin '${this.#owner}' binds '${keyName(key)}' twice`);
  }
}

/**
 * Keys that `@inject` gives the constructor's parameters, undefined for one without. A subclass without parameters and
 * without `@inject` is built with its parent's.
 */
function injectedKeys(implementation: Class<unknown>): readonly (Key | undefined)[] {
  // Metadata written by tsyringe's `inject`, which looks along the prototypes.
  const parent = Reflect.getMetadata("injectionTokens", implementation);
  const own = Reflect.getOwnMetadata("injectionTokens", implementation);
  const tokens: Readonly<Record<number, { readonly token: Key }>> =
    (implementation.length === 0 ? parent : own) ?? {};
  const length = Math.max(implementation.length, ...Object.keys(tokens).map((index) => Number(index) + 1));
  return Array.from({ length }, (_, index) => tokens[index]?.token);
}

function keyName(key: Key): string {
  return typeof key === "symbol" ? tokenName(key) : key.name;
}
