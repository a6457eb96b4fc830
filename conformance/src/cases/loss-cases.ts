import assert from "node:assert/strict";
import type { Sandbox } from "@coppice/core/backend";
import { CaseSkipped, type ConformanceCase } from "../kit/conformance-case.js";

const ANSWER_MS = 5_000;

/** A sandbox reports that it ended by itself, and no other event looks like that. */
export const lossCases: readonly ConformanceCase[] = [
  {
    name: "a sandbox that ends by itself reports it, refuses everything and can be destroyed",
    group: "facets",
    needs: ["lost"],
    async run(context) {
      const { sandbox, subject } = context;
      if (!("lose" in subject)) throw new CaseSkipped("how to end one of its sandboxes is not said");
      const running = await context.start("sleep 300");
      await subject.lose?.(sandbox);
      const loss = await context.within(ANSWER_MS, "it says so", lostOf(sandbox));
      assert.equal(loss, "backend lost");
      await context.within(ANSWER_MS, "its process has ended", running.exit);
      await context.refuses(() => sandbox.spawn({ path: "true", args: [], env: {} }), "unavailable");
      await context.refuses(() => sandbox.dial(1, new AbortController().signal), "unavailable");
      await context.within(ANSWER_MS, "it is destroyed", sandbox.destroy());
      await sandbox.destroy();
    },
  },
  {
    name: "neither the death of a process nor a destruction counts as a sandbox that ended by itself",
    group: "facets",
    needs: ["lost"],
    async run(context) {
      const { sandbox } = context;
      const loss = new Set<string>();
      void lostOf(sandbox).then((reason) => loss.add(reason));
      assert.deepEqual((await context.shell("kill -9 $$")).exit, { signal: "SIGKILL" });
      assert.equal(await context.succeed("echo alive"), "alive\n");
      await sandbox.destroy();
      await new Promise(setImmediate);
      assert.deepEqual([...loss], []);
    },
  },
];

function lostOf({ lost }: Sandbox): Promise<string> {
  assert.ok(lost, "the sandbox does not tell its end");
  return lost;
}
