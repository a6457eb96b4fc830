import assert from "node:assert/strict";
import { it } from "node:test";
import { currentOwner, runAs } from "./owner.js";
import { inLaterTurn, laterTurn } from "./turns.js";

it("What waits for a later turn goes on as the plugin that asked for it, not as the first one that waits", async () => {
  const owners: string[] = [];
  const waitAs = (owner: string): Promise<void> =>
    runAs(owner, () => {
      const { promise, resolve } = Promise.withResolvers<void>();
      inLaterTurn(owner, () => {
        owners.push(currentOwner());
        resolve();
      });
      return promise;
    });
  await Promise.all(["one", "other"].map(waitAs));
  assert.deepEqual(owners, ["one", "other"]);
});

it("What a sender has waiting does not delay another sender, nor is it lost", async () => {
  const order: string[] = [];
  const waitAs = async (sender: string): Promise<void> => {
    await laterTurn(sender);
    order.push(sender);
  };
  const hostile = Array.from({ length: 1000 }, () => waitAs("hostile"));
  await Promise.all([...hostile, waitAs("other"), waitAs("third"), waitAs("other")]);
  assert.deepEqual(order.slice(0, 6), ["hostile", "other", "third", "hostile", "other", "hostile"]);
  assert.equal(order.length, 1003);
});
