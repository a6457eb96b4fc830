import assert from "node:assert/strict";
import { it } from "node:test";
import { currentOwner, isGone } from "./sandbox-directory.js";

it("an owner is gone when another process has its pid, and never when it is on another host", async () => {
  const own = await currentOwner();
  const [host = "", pid = "", start = ""] = own.split(".");
  assert.equal(await isGone(own), false);
  assert.equal(await isGone(`${host}.${pid}.00000000`), true, "the pid was used again");
  assert.equal(await isGone(`${host}.999999999.${start}`), true);
  assert.equal(await isGone(`ffff${host}.${pid}.00000000`), false);
});
