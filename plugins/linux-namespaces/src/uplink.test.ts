import { describe, test } from "node:test";
import { reasonWithoutUplink, openHostApart } from "./testing/host-apart.js";
import { reasonWithoutEgress } from "./testing/open-internet.js";
import {
  compileForAll,
  makeOrdinaryUser,
  placeOf,
  reasonNoOrdinaryUser,
  reasonNoSubordinateIds,
} from "./testing/ordinary-user.js";
import { testApart } from "./testing/test-apart.js";

const skip = reasonNoOrdinaryUser() ?? reasonWithoutEgress() ?? false;

void describe("the way out for the sandboxes of an ordinary user", { skip, concurrency: 1 }, () => {
  for (const program of ["pasta", "slirp4netns"] as const) {
    const reason = reasonWithoutUplink(program) ?? reasonNoSubordinateIds() ?? false;
    void test(`by ${program}`, { skip: reason }, async (context) => {
      await compileForAll();
      await using user = await makeOrdinaryUser();
      await using host = await openHostApart(placeOf(user));
      const env = { ...host.place.env, COPPICE_TEST_EGRESS_PROGRAM: `/usr/bin/${program}` };
      const files = ["egress.test.js", "testing/uplink-cases.js"].slice(program === "pasta" ? 0 : 1);
      await testApart(context, { ...host.place, env }, files);
    });
  }
});
