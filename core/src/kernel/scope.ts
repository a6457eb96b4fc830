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
    this.#container.register(key, {
      // The key may be the class itself, so it is built by hand: resolving it here would recurse.
      useFactory: instanceCachingFactory(
        () =>
          new implementation(
            ...parametersOf(implementation).map((parameter) => this.#fill(implementation, parameter)),
          ),
      ),
    });
  }

  bindValue(key: symbol, value: unknown): void {
    this.#refuseTwice(key);
    this.#container.register(key, { useValue: value });
  }

  has(key: Key): boolean {
    // Not recursive: the global container is out of bounds.
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
    return [...this.#classes.values()].flatMap((implementation) =>
      parametersOf(implementation)
        .filter((parameter) => parameter.key === undefined || !this.has(parameter.key))
        .map((parameter) =>
          parameter.key === undefined
            ? `${implementation.name}: constructor parameter '${parameter.name}' has no @inject(Token)`
            : `${implementation.name}: constructor parameter '${parameter.name}' needs '${keyName(parameter.key)}', which '${this.#owner}' neither binds nor requires`,
        ),
    );
  }

  #fill(implementation: Class<unknown>, parameter: Parameter): unknown {
    if (parameter.key === undefined) {
      throw new Error(
        `${implementation.name}: constructor parameter '${parameter.name}' has no @inject(Token)`,
      );
    }
    return this.resolve(parameter.key);
  }

  #refuseTwice(key: Key): void {
    if (this.has(key)) throw new Error(`plugin '${this.#owner}' binds '${keyName(key)}' twice`);
  }
}

interface Parameter {
  readonly name: string;
  readonly key: Key | undefined;
}

/** The constructor's parameters with their `@inject`, of the nearest class that has any. */
function parametersOf(implementation: Class<unknown>): readonly Parameter[] {
  let declaring: unknown = implementation;
  while (typeof declaring === "function" && declaring.length === 0 && isSilentSubclass(declaring)) {
    declaring = Object.getPrototypeOf(declaring);
  }
  if (typeof declaring !== "function" || declaring === Function.prototype) return [];
  // Metadata written by tsyringe's `inject`.
  const injected: Readonly<Record<number, { readonly token: Key } | undefined>> =
    Reflect.getOwnMetadata("injectionTokens", declaring) ?? {};
  const names = parameterNames(declaring);
  const count = Math.max(
    declaring.length,
    names.length,
    ...Object.keys(injected).map((index) => Number(index) + 1),
  );
  return Array.from({ length: count }, (_, index) => ({
    name: names[index] ?? `#${index + 1}`,
    key: injected[index]?.token,
  }));
}

/** True for a subclass without a constructor of its own, which is built with its parent's parameters. */
function isSilentSubclass(declaring: Function): boolean {
  return (
    /^class[^{]*\bextends\b/.test(declaring.toString()) && !/\bconstructor\s*\(/.test(declaring.toString())
  );
}

/** For messages only: parsed from the source text, so best effort. */
function parameterNames(declaring: Function): readonly string[] {
  const list = /\bconstructor\s*\(([^)]*)\)/.exec(declaring.toString())?.[1] ?? "";
  return list
    .split(",")
    .map((parameter) => parameter.split("=")[0]?.trim() ?? "")
    .filter((name) => name !== "");
}

function keyName(key: Key): string {
  return typeof key === "symbol" ? tokenName(key) : key.name;
}
