import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import type { ConformanceCase, Facet } from "./conformance-case.js";

const METHODS: Readonly<Record<Facet, readonly string[]>> = {
  pausing: ["pause", "resume"],
  snapshots: ["take", "remove"],
  resizing: ["resize"],
};
const FACETS = Object.keys(METHODS) as readonly Facet[];

/** What a sandbox can do beyond the rest: what it has works, what it cannot do is absent. */
export const facetCases: readonly ConformanceCase[] = [
  {
    name: "a facet is there with all its methods, or absent",
    group: "facets",
    async run({ sandbox }) {
      for (const facet of FACETS) {
        const present: object | undefined = sandbox[facet];
        if (present === undefined) continue;
        for (const method of METHODS[facet]) {
          assert.equal(typeof Reflect.get(present, method), "function", `${facet}.${method} is missing`);
        }
      }
    },
  },
  {
    name: "its facets are those that it is said to have",
    group: "facets",
    async run({ sandbox, subject }) {
      if (subject.facets === undefined) return;
      const present = FACETS.filter((facet) => sandbox[facet] !== undefined);
      assert.deepEqual(present.toSorted(), subject.facets.toSorted());
    },
  },
  {
    name: "a paused sandbox stands still and goes on where it was",
    group: "facets",
    needs: ["pausing"],
    async run(context) {
      const { sandbox } = context;
      const ticking = await context.start("i=0; while :; do i=$((i + 1)); echo $i; sleep 0.02; done");
      let ticks = 0;
      const reading = (async () => {
        for await (const _ of ticking.output) ticks++;
      })();
      await context.until("it ticks", () => ticks > 2);
      await sandbox.pausing?.pause();
      await sleep(200);
      const before = ticks;
      await sleep(300);
      assert.equal(ticks, before, "it ticks while it is paused");
      await sandbox.pausing?.resume();
      await context.until("it ticks again", () => ticks > before);
      await ticking.kill("SIGKILL");
      await reading;
    },
  },
  {
    name: "a paused sandbox can be destroyed",
    group: "facets",
    needs: ["pausing"],
    async run(context) {
      await context.start("sleep 300");
      await context.sandbox.pausing?.pause();
      await context.sandbox.destroy();
    },
  },
];
