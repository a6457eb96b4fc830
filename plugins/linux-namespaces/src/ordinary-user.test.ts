import { describe, it } from "node:test";
import {
  compileForAll,
  makeOrdinaryUser,
  placeOf,
  reasonWithoutOrdinaryUser,
  reasonWithoutSubordinateIds,
} from "./testing/ordinary-user.js";
import { openHostApart, reasonWithoutUplink } from "./testing/host-apart.js";
import { reasonWithoutEgress } from "./testing/open-internet.js";
import { testApart } from "./testing/test-apart.js";

const skip = reasonWithoutOrdinaryUser() ?? reasonWithoutSubordinateIds() ?? false;

describe("linux-namespaces, started by an ordinary user", { skip }, () => {
  it("passes the conformance suite", async (context) => {
    await compileForAll();
    await using user = await makeOrdinaryUser();
    const cases = ["testing/conformance-cases.js"];
    const missing = reasonWithoutEgress() ?? reasonWithoutUplink("pasta");
    if (missing !== undefined) {
      context.diagnostic(`without egress: ${missing}`);
      await testApart(context, placeOf(user), cases);
      return;
    }
    await using host = await openHostApart(placeOf(user));
    await testApart(context, host.place, cases);
  });
});
