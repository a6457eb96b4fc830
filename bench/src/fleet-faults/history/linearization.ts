import { describeOperation, type Operation } from "./operation.js";
import { afterAction, type SandboxState } from "./sandbox-model.js";

/**
 * Looks for an order of the operations on one sandbox in which each takes effect at one moment between its start and its
 * end, and every answer is the right one for that moment (Wing and Gong's search, with Lowe's memory of what was tried).
 * @returns why there is none, as text; undefined when there is one.
 */
export function whyNotLinearizable(history: readonly Operation[]): string | undefined {
  const operations = history.toSorted((one, other) => one.startMs - other.startMs);
  const ends = operations.map(({ endMs }) => endMs ?? Infinity);
  const needed = ends.filter((end) => end < Infinity).length;
  const tried = new Set<string>();
  let furthest: readonly number[] = [];

  const stack: Step[] = [{ state: "unmade", order: [], answered: 0 }];
  for (let step = stack.pop(); step !== undefined; step = stack.pop()) {
    if (step.answered === needed) return undefined;
    const key = keyOf(step);
    if (tried.has(key)) continue;
    tried.add(key);
    if (step.order.length > furthest.length) furthest = step.order;
    const { state, order, answered } = step;
    for (const index of possibleNext(operations, ends, new Set(order)).toReversed()) {
      const { action, endMs } = operations[index] as Operation;
      const after = afterAction(state, action);
      if (after === undefined) continue;
      const isAnswered = endMs !== undefined;
      stack.push({ state: after, order: [...order, index], answered: answered + (isAnswered ? 1 : 0) });
    }
  }
  const done = new Set(furthest);
  const left = operations.filter((_, index) => !done.has(index) && ends[index] !== Infinity);
  return [
    "no order explains all answers. The longest that explains some:",
    ...furthest.slice(-SHOWN).map((index) => `  ${describeOperation(operations[index] as Operation)}`),
    "then none of these can be next:",
    ...left.slice(0, SHOWN).map((one) => `  ${describeOperation(one)}`),
  ].join("\n");
}

interface Step {
  readonly state: SandboxState;
  /** Indices of the operations that took effect, in that order. */
  readonly order: readonly number[];
  /** How many of them have an answer. */
  readonly answered: number;
}

/** Operations of either list in a description. */
const SHOWN = 12;

/** What is left to do depends on the state and on the operations that took effect, but not on their order. */
function keyOf({ state, order }: Step): string {
  return `${state} ${order.toSorted((one, other) => one - other).join()}`;
}

/**
 * Indices of the operations that began before any other one that is left had ended, the next to end first. Of those
 * without an answer that are alike the first is enough: in any order that has a later one, it can take its place.
 */
function possibleNext(
  operations: readonly Operation[],
  ends: readonly number[],
  done: ReadonlySet<number>,
): readonly number[] {
  let firstEnd = Infinity;
  const possible: number[] = [];
  const unanswered = new Set<string>();
  for (const [index, { action, startMs, endMs }] of operations.entries()) {
    if (startMs > firstEnd) break;
    if (done.has(index)) continue;
    firstEnd = Math.min(firstEnd, ends[index] ?? Infinity);
    if (endMs === undefined && unanswered.has(action.kind)) continue;
    if (endMs === undefined) unanswered.add(action.kind);
    possible.push(index);
  }
  // Those after the first end were left out by the loop, and those before it that began too late are not there.
  return possible
    .filter((index) => (operations[index]?.startMs ?? 0) <= firstEnd)
    .toSorted((one, other) => (ends[one] ?? 0) - (ends[other] ?? 0));
}
