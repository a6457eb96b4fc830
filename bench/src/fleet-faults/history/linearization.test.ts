import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { SeededRandom } from "@coppice/core/testing";
import { whyNotLinearizable } from "./linearization.js";
import type { Action, Operation } from "./operation.js";
import { afterAction, type SandboxState } from "./sandbox-model.js";

const CREATE: Action = { kind: "create" };
const GONE: Action = { kind: "gone" };
const THERE: Action = { kind: "there" };
const increment = (value?: number): Action => ({
  kind: "increment",
  ...(value !== undefined && { value }),
});

/** @param endMs undefined: the outcome is unknown. */
const at = (startMs: number, endMs: number | undefined, action: Action): Operation => ({
  action,
  by: "client",
  startMs,
  endMs,
});

const EXPLAINED: Readonly<Record<string, readonly Operation[]>> = {
  "one after the other": [at(0, 1, CREATE), at(2, 3, increment(1)), at(4, 5, increment(2))],
  "increments at one time, answered in the other order": [
    at(0, 1, CREATE),
    at(2, 9, increment(2)),
    at(3, 8, increment(1)),
  ],
  "an unknown increment that took effect": [
    at(0, 1, CREATE),
    at(2, undefined, increment()),
    at(4, 5, increment(2)),
  ],
  "an unknown increment that did not": [
    at(0, 1, CREATE),
    at(2, undefined, increment()),
    at(4, 5, increment(1)),
  ],
  "an unknown increment that took effect late": [
    at(0, 1, CREATE),
    at(2, undefined, increment()),
    at(4, 5, increment(1)),
    at(6, 7, increment(3)),
  ],
  "a loss while an increment was under way": [at(0, 1, CREATE), at(2, 6, increment(1)), at(3, 5, GONE)],
  "a list that was made before the creation": [at(0, 5, CREATE), at(1, 6, GONE), at(7, 8, THERE)],
  "two kills at one time": [at(0, 1, CREATE), at(2, 5, { kind: "kill" }), at(3, 6, { kind: "kill" })],
  "a kill of unknown outcome, and a sandbox that goes on": [
    at(0, 1, CREATE),
    at(2, undefined, { kind: "kill" }),
    at(3, 4, increment(1)),
  ],
};

const CONTRADICTIONS: Readonly<Record<string, readonly Operation[]>> = {
  "a lost increment": [at(0, 1, CREATE), at(2, 3, increment(1)), at(4, 5, increment(1))],
  "a double increment": [at(0, 1, CREATE), at(2, 3, increment(1)), at(4, 5, { kind: "read", value: 2 })],
  "two owners, each with a counter": [
    at(0, 1, CREATE),
    at(2, 3, increment(1)),
    at(4, 9, increment(2)),
    at(5, 8, increment(2)),
  ],
  "a fenced owner that serves after the loss was told": [
    at(0, 1, CREATE),
    at(2, 3, increment(1)),
    at(4, 5, GONE),
    at(6, 7, increment(2)),
  ],
  "a sandbox that is back": [at(0, 1, CREATE), at(2, 3, GONE), at(4, 5, THERE)],
  "a sandbox that goes on after its kill": [
    at(0, 1, CREATE),
    at(2, 3, { kind: "kill" }),
    at(4, 5, { kind: "read", value: 0 }),
  ],
  "an unknown increment that took effect twice": [
    at(0, 1, CREATE),
    at(2, undefined, increment()),
    at(4, 5, { kind: "read", value: 2 }),
  ],
  "an answer from before the creation": [at(0, 1, THERE), at(2, 3, CREATE)],
  "an unknown increment that took effect before it began": [
    at(0, 1, CREATE),
    at(2, 3, increment(2)),
    at(4, undefined, increment()),
  ],
};

describe("the check of a history", () => {
  for (const [what, history] of Object.entries(EXPLAINED))
    it(`explains ${what}`, () => assert.equal(whyNotLinearizable(history), undefined));
  for (const [what, history] of Object.entries(CONTRADICTIONS))
    it(`finds ${what}`, () => assert.match(whyNotLinearizable(history) ?? "", /no order explains/));

  it("agrees with trying all orders, on short histories made at random", () => {
    const found = { explained: 0, contradicted: 0 };
    for (let seed = 1; seed <= 3000; seed += 1) {
      const history = randomHistory(new SeededRandom(seed));
      const expected = isExplainedByAnOrder(history);
      assert.equal(whyNotLinearizable(history) === undefined, expected, `seed ${seed}`);
      found[expected ? "explained" : "contradicted"] += 1;
    }
    assert.ok(found.explained > 300 && found.contradicted > 300, JSON.stringify(found));
  });

  it("is done at once with a long history of which many outcomes are unknown", () => {
    const history: Operation[] = [at(0, 1, CREATE)];
    let value = 0;
    for (let time = 2; time < 800; time += 2) {
      if (time % 10 === 0) history.push(at(time, undefined, increment()));
      else history.push(at(time, time + 5, increment((value += time % 30 === 2 && time > 30 ? 2 : 1))));
    }
    const startedAt = performance.now();
    assert.equal(whyNotLinearizable(history), undefined);
    assert.ok(performance.now() - startedAt < 5000);
  });
});

/** Six operations after a creation. */
function randomHistory(random: SeededRandom): readonly Operation[] {
  const history = [at(0, 1, CREATE)];
  for (let index = 0; index < 6; index += 1) {
    const startMs = 2 + random.below(12);
    const isUnknown = random.below(4) === 0;
    const answers: readonly Action[] = [
      increment(1 + random.below(4)),
      increment(1 + random.below(4)),
      { kind: "read", value: random.below(4) },
      random.below(3) === 0 ? GONE : THERE,
    ];
    history.push(
      isUnknown
        ? at(startMs, undefined, increment())
        : at(startMs, startMs + 1 + random.below(8), answers[random.below(4)] ?? THERE),
    );
  }
  return history;
}

/** Tries everything. */
function isExplainedByAnOrder(left: readonly Operation[], state: SandboxState = "unmade"): boolean {
  if (left.every(({ endMs }) => endMs === undefined)) return true;
  const firstEnd = Math.min(...left.map(({ endMs }) => endMs ?? Infinity));
  return left.some((one) => {
    const after = one.startMs <= firstEnd ? afterAction(state, one.action) : undefined;
    return (
      after !== undefined &&
      isExplainedByAnOrder(
        left.filter((other) => other !== one),
        after,
      )
    );
  });
}
