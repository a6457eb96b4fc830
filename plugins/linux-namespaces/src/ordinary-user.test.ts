import { describe, test } from "node:test";
import {
  compileForAll,
  makeOrdinaryUser,
  placeOf,
  reasonNoOrdinaryUser,
  reasonNoSubordinateIds,
} from "./testing/ordinary-user.js";
import { testApart } from "./testing/test-apart.js";

const skip = reasonNoOrdinaryUser() ?? reasonNoSubordinateIds() ?? false;

void describe("linux-namespaces, started by an ordinary user", { skip }, () => {
  void test("keeps the promises of a backend", async (context) => {
    await compileForAll();
    await using user = await makeOrdinaryUser();
    await testApart(context, placeOf(user), ["testing/conformance-cases.js"]);
  });
});
