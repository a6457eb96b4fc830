import { describe, it } from "node:test";
import { reasonWithoutUplink, openHostApart } from "../testing/host-apart.js";
import { reasonWithoutEgress } from "../testing/open-internet.js";
import {
  compileForAll,
  makeOrdinaryUser,
  placeOf,
  reasonWithoutOrdinaryUser,
  reasonWithoutSubordinateIds,
} from "../testing/ordinary-user.js";
import { testApart } from "../testing/test-apart.js";

const skip = reasonWithoutOrdinaryUser() ?? reasonWithoutEgress() ?? false;

describe("egress for the sandboxes of an ordinary user", { skip, concurrency: 1 }, () => {
  for (const program of ["pasta", "slirp4netns"] as const) {
    const reason = reasonWithoutUplink(program) ?? reasonWithoutSubordinateIds() ?? false;
    it(`by ${program}`, { skip: reason }, async (context) => {
      await compileForAll();
      await using user = await makeOrdinaryUser();
      await using host = await openHostApart(placeOf(user));
      const chosen = { COPPICE_TEST_EGRESS_PROGRAM: `/usr/bin/${program}`, COPPICE_TEST_CYCLES: "20" };
      const env = { ...host.place.env, ...chosen };
      // Tests of the path to the program are the same for both.
      const shared = program === "pasta" ? ["egress.test.js", "cycles.test.js"] : [];
      const files = [...shared, "testing/uplink-cases.js"];
      await testApart(context, { ...host.place, env }, files);
    });
  }
});
