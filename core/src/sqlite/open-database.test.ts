import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { openDatabase } from "./open-database.js";

it("a file whose migration fails stays unchanged, and a working migration completes it", async (context) => {
  const folder = await mkdtemp(join(tmpdir(), "coppice-sqlite-"));
  context.after(() => rm(folder, { recursive: true }));
  const path = join(folder, "some.sqlite");
  const first = "CREATE TABLE one (id TEXT)";
  openDatabase({ path, migrations: [first] }).close();
  const broken = ["CREATE TABLE two (id TEXT)", "INSERT INTO nowhere VALUES (1)"];
  assert.throws(() => openDatabase({ path, migrations: [first, ...broken] }), /some\.sqlite.*nowhere/);

  const migrated = openDatabase({ path, migrations: [first, "CREATE TABLE two (id TEXT, more TEXT)"] });
  context.after(() => migrated.close());
  assert.equal(migrated.prepare("PRAGMA user_version").get()?.["user_version"], 2);
  migrated.exec("INSERT INTO two (id, more) VALUES ('a', 'b')");
});
