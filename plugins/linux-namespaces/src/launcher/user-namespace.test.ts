import { describe, it } from "node:test";
import {
  compileForAll,
  makeOrdinaryUser,
  placeOf,
  reasonNoOrdinaryUser,
  reasonNoSubordinateIds,
} from "../testing/ordinary-user.js";
import { testApart } from "../testing/test-apart.js";

/** In no database, and with no ids of its own. */
const STRANGER = { uid: 61_183, groups: [] };

describe("sandboxes in user namespaces", { skip: reasonNoOrdinaryUser() ?? false, concurrency: 1 }, () => {
  const withIds = { skip: reasonNoSubordinateIds() ?? false };

  it("are as isolated, limited and lasting as root's", withIds, async (context) => {
    await compileForAll();
    await using user = await makeOrdinaryUser();
    const files = ["isolation.test.js", "namespace-sandbox.test.js", "recovery.test.js"];
    await testApart(context, placeOf(user), files);
  });

  it("are held by resource limits where their user has no control groups", withIds, async (context) => {
    await using user = await makeOrdinaryUser();
    await testApart(context, placeOf({ ...user, groups: [] }), ["testing/without-groups-cases.js"]);
  });

  it("have one account where their user has no ids to give", async (context) => {
    await testApart(context, placeOf(STRANGER), ["testing/one-account-cases.js"]);
  });
});
