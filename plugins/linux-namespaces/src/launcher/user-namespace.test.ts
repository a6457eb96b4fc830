import { describe, it } from "node:test";
import {
  compileForAll,
  makeOrdinaryUser,
  placeOf,
  reasonWithoutOrdinaryUser,
  reasonWithoutSubordinateIds,
} from "../testing/ordinary-user.js";
import { testApart } from "../testing/test-apart.js";

/** In no database, and without subordinate ids. */
const STRANGER = { uid: 61_183, groups: [] };

describe(
  "sandboxes in user namespaces",
  { skip: reasonWithoutOrdinaryUser() ?? false, concurrency: 1 },
  () => {
    const withIds = { skip: reasonWithoutSubordinateIds() ?? false };

    it("are as isolated, limited and durable as root's", withIds, async (context) => {
      await compileForAll();
      await using user = await makeOrdinaryUser();
      const names = [
        "isolation",
        "shown-limits",
        "namespace-sandbox",
        "recovery",
        "images",
        "hostile-images",
      ];
      const files = [...names, "launcher/confined-program", "network/inside-connections"].map(
        (name) => `${name}.test.js`,
      );
      await testApart(context, placeOf(user), files);
    });

    it("have resource limits where their user has no control groups", withIds, async (context) => {
      await using user = await makeOrdinaryUser();
      await testApart(context, placeOf({ ...user, groups: [] }), ["testing/without-groups-cases.js"]);
    });

    it("have one account where their user has no subordinate ids", async (context) => {
      await testApart(context, placeOf(STRANGER), ["testing/one-account-cases.js"]);
    });
  },
);
