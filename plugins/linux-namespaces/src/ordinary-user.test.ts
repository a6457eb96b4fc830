import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { launcherBinary } from "./launcher-binary.js";
import {
  makeOrdinaryUser,
  placeOf,
  reasonNoOrdinaryUser,
  reasonNoSubordinateIds,
} from "./testing/ordinary-user.js";
import { testApart } from "./testing/test-apart.js";

/** In no database, and with no ids of its own. */
const STRANGER = { uid: 61_183, groups: [] };

void describe(
  "linux-namespaces without root",
  { skip: reasonNoOrdinaryUser() ?? false, concurrency: 1 },
  () => {
    const withIds = { skip: reasonNoSubordinateIds() ?? false };

    void test("by a user with ids and control groups it keeps every promise", withIds, async (context) => {
      await compileOnce();
      await using user = await makeOrdinaryUser();
      const files = [
        "testing/conformance-cases.js",
        "isolation.test.js",
        "namespace-sandbox.test.js",
        "recovery.test.js",
      ];
      await testApart(context, placeOf(user), files);
    });

    void test("by a user with ids alone it holds sandboxes by resource limits", withIds, async (context) => {
      await using user = await makeOrdinaryUser();
      await testApart(context, placeOf({ ...user, groups: [] }), ["testing/without-groups-cases.js"]);
    });

    void test("by a user with nothing its sandboxes have one account", async (context) => {
      await testApart(context, placeOf(STRANGER), ["testing/one-account-cases.js"]);
    });
  },
);

/** Where the package can be written: others would do it for each of their directories. */
async function compileOnce(): Promise<void> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-launcher-"));
  await launcherBinary(directory);
  await rm(directory, { recursive: true });
}
