import { whyNotLinearizable } from "./linearization.js";
import type { Action, Operation } from "./operation.js";

/** All that clients asked of sandboxes, and what they were answered. */
export class History {
  readonly #operations = new Map<string, Operation[]>();
  #count = 0;

  /** Operations so far, also of what was forgotten. */
  get count(): number {
    return this.#count;
  }

  /** Records an operation that has ended just now. */
  answered(sandbox: string, operation: Omit<Operation, "endMs">): void {
    this.#add(sandbox, { ...operation, endMs: performance.now() });
  }

  /** Records an operation of which nobody knows whether it has taken or will take effect. */
  unknown(sandbox: string, operation: Omit<Operation, "endMs">): void {
    this.#add(sandbox, { ...operation, endMs: undefined });
  }

  of(sandbox: string): readonly Operation[] {
    return this.#operations.get(sandbox) ?? [];
  }

  /** Names of the actions on a sandbox that may have taken effect. */
  has(sandbox: string, kind: Action["kind"]): boolean {
    return this.of(sandbox).some(({ action }) => action.kind === kind);
  }

  /** Removes what nothing will be added to. */
  forget(sandbox: string): void {
    this.#operations.delete(sandbox);
  }

  /** What no order of operations explains, as text. */
  contradictions(): readonly string[] {
    return [...this.#operations].flatMap(([sandbox, operations]) => {
      const why = whyNotLinearizable(operations);
      return why === undefined ? [] : [`sandbox ${sandbox}: ${why}`];
    });
  }

  #add(sandbox: string, operation: Operation): void {
    this.#count += 1;
    const known = this.#operations.get(sandbox);
    if (known === undefined) this.#operations.set(sandbox, [operation]);
    else known.push(operation);
  }
}
