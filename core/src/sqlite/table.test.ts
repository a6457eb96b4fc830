import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import { it, type TestContext } from "node:test";
import { z } from "zod";
import { Table } from "./table.js";

const thing = z.object({
  id: z.string(),
  ownerId: z.string(),
  isReady: z.boolean().default(false),
  tags: z.array(z.string()).default([]),
  size: z.object({ bytes: z.number() }).optional(),
  note: z.string().optional(),
});

function things(context: TestContext) {
  const database = new DatabaseSync(":memory:");
  context.after(() => database.close());
  database.exec(
    `CREATE TABLE thing (id TEXT PRIMARY KEY, owner TEXT NOT NULL, is_ready INTEGER NOT NULL DEFAULT 0,
       tags TEXT NOT NULL DEFAULT '[]', size TEXT, note TEXT DEFAULT 'new') STRICT`,
  );
  return new Table(database, { name: "thing", schema: thing, columns: { ownerId: "owner" } });
}

it("rows come back as they were written, by the columns of their fields", (context) => {
  const table = things(context);
  const whole = { id: "a", ownerId: "me", isReady: true, tags: ["x", "y"], size: { bytes: 5 }, note: "it's" };
  // More fields than the table has are no mistake: a record that has these and others is written as it is.
  const wider = { ...whole, other: "field" };
  assert.equal(table.insert(wider), true);
  assert.deepEqual(table.get({ id: "a" }), whole);
  assert.deepEqual(table.query("SELECT owner, is_ready, tags, size FROM thing"), [
    { __proto__: null, owner: "me", is_ready: 1, tags: '["x","y"]', size: '{"bytes":5}' },
  ]);
  table.insert({ id: "b", ownerId: "me" });
  assert.deepEqual(
    { ...table.get({ id: "b" }) },
    { ...whole, id: "b", isReady: false, tags: [], size: undefined, note: "new" },
  );

  table.put({ id: "a", ownerId: "you", isReady: false, tags: [] });
  assert.deepEqual(
    { ...table.get({ id: "a" }) },
    { id: "a", ownerId: "you", isReady: false, tags: [], size: undefined, note: undefined },
  );
  assert.equal(table.insert({ id: "a", ownerId: "other" }, "INSERT OR IGNORE"), false);
  assert.throws(() => table.insert({ id: "a", ownerId: "other" }), /UNIQUE/);
  assert.equal(table.get({ id: "a" })?.ownerId, "you");
  assert.equal(table.insert({ id: "a", ownerId: "other" }, "REPLACE"), true);
  assert.equal(table.get({ id: "a" })?.ownerId, "other");
});

it("rows are found, changed and removed by values, lists of values and the absence of one", (context) => {
  const table = things(context);
  for (const id of ["a", "b", "c", "d"])
    table.put({
      id,
      ownerId: id < "c" ? "me" : "you",
      isReady: false,
      tags: [],
      ...(id === "d" && { note: "n" }),
    });
  const ids = (rows: readonly { readonly id: string }[]) => rows.map(({ id }) => id).join("");
  assert.equal(ids(table.all({}, { by: "id DESC" })), "dcba");
  assert.equal(ids(table.all({}, { by: "id", limit: 2, offset: 1 })), "bc");
  assert.equal(ids(table.all({ ownerId: "me", id: ["b", "c", "x"] })), "b");
  assert.equal(ids(table.all({ note: undefined }, { by: "id" })), "abc");
  assert.equal(ids(table.all({ id: { ">=": "b", "<": "d" }, ownerId: { not: "you" } })), "b");
  assert.equal(ids(table.all({ ownerId: { starts: "y" }, id: { "<=": "c" }, note: { not: "n" } })), "c");
  assert.equal(ids(table.all({ note: { not: undefined } })), "d");
  assert.equal(ids(table.select("WHERE owner = ? AND id > ?", "you", "c")), "d");
  assert.equal(table.get({ id: "a", ownerId: "you" }), undefined);
  assert.deepEqual([table.has({ id: "a" }), table.has({ id: "x" })], [true, false]);
  assert.deepEqual(
    [table.count({ ownerId: ["me", "you"] }), table.count({ id: [] }), table.count()],
    [4, 0, 4],
  );

  assert.equal(table.update({ ownerId: "you" }, { isReady: true, note: undefined }), 2);
  assert.deepEqual([table.sum("isReady"), table.sum("isReady", { ownerId: "x" })], [2, 0]);
  assert.equal(ids(table.all({ isReady: true, note: undefined }, { by: "id" })), "cd");
  // A condition whose value is missing by mistake must not remove other rows.
  assert.equal(table.remove({ id: undefined }), 0);
  assert.equal(table.remove({ ownerId: "you" }), 2);
  assert.equal(ids(table.all({}, { by: "id" })), "ab");
});

it("a row that does not fit its schema is an error that names the table and the field", (context) => {
  const table = things(context);
  table.insert({ id: "a", ownerId: "me" });
  table.run("UPDATE thing SET tags = '[1]'");
  assert.throws(() => table.get({ id: "a" }), /table 'thing' has an invalid row.*tags\[0\]/su);
  table.run("UPDATE thing SET tags = '['");
  assert.throws(() => table.all(), /table 'thing' has an invalid row.*JSON/su);
  const unknown = { secret: "x" } as { readonly id?: string };
  assert.throws(() => table.get(unknown), /no field 'secret'/);
});
