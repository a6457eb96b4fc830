import assert from "node:assert/strict";
import { it } from "node:test";
import type { FleetStore } from "./fleet-store.js";
import { KeyView } from "./key-view.js";

/** Has an entry until its watch, the second listing and the second watch tell that it is gone. */
function storeThatLoses(key: string): Pick<FleetStore, "each" | "watch"> {
  let isThere = true;
  return {
    async each(_prefix, visit) {
      if (isThere) visit({ key, value: "there", createRevision: 1, modRevision: 1 });
      return isThere ? 1 : 2;
    },
    async *watch(_prefix, _after, signal) {
      if (isThere) {
        isThere = false;
        yield { kind: "changes", revision: 2, changes: [{ key, entry: undefined }] };
      }
      if (!signal.aborted) await new Promise((resolve) => signal.addEventListener("abort", resolve));
    },
  };
}

it("a change that could not be taken is told again, also one that removes", { timeout: 10_000 }, async () => {
  const told: unknown[] = [];
  const { promise: taken, resolve } = Promise.withResolvers<void>();
  const view = new KeyView({
    store: storeThatLoses("records/a") as FleetStore,
    prefix: "records/",
    parse: ({ value }) => value,
    onChange: (name, value, before) => {
      told.push([name, value, before]);
      // As by a full disk.
      if (told.length === 1) throw new Error("the disk is full");
      resolve();
    },
    log: { debug: () => {}, error: () => {} },
  });
  await view.start();
  assert.equal(view.get("a"), "there");
  await taken;
  assert.deepEqual(told, [
    ["a", undefined, "there"],
    ["a", undefined, "there"],
  ]);
  assert.equal(view.get("a"), undefined);
  await view.stop();
});
