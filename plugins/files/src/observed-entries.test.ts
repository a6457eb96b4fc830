import assert from "node:assert/strict";
import { test } from "node:test";
import type { WatchEvent } from "@coppice/core/backend";
import { type EntryState, ObservedEntries } from "./observed-entries.js";

const state = (changes: Partial<EntryState> = {}): EntryState => ({
  sizeBytes: 2,
  modifiedAtMs: 1000,
  permissions: 0o644,
  ...changes,
});
const told = (events: readonly WatchEvent[]): readonly string[] =>
  events.map(({ name, type }) => `${type} ${name}`);

test("Looks at an entry are told by what differs from the last look", () => {
  const entries = new ObservedEntries();
  entries.learn("old", state());
  assert.deepEqual(told(entries.see("old", state(), true)), [], "nothing has changed");
  assert.deepEqual(told(entries.see("old", state({ permissions: 0o600 }), true)), ["chmod old"]);
  assert.deepEqual(told(entries.see("old", state({ sizeBytes: 3 }), true)), ["chmod old", "write old"]);
  assert.deepEqual(told(entries.see("new", state(), true)), ["create new", "write new"]);
  assert.deepEqual(told(entries.see("empty", state({ sizeBytes: 0 }), true)), ["create empty"]);
  assert.deepEqual(told(entries.see("dir", state(), false)), ["create dir"]);
  assert.deepEqual(told(entries.see("dir", state({ modifiedAtMs: 2000 }), false)), []);
  assert.deepEqual(told(entries.miss("new")), ["remove new"]);
  assert.deepEqual(told(entries.miss("new")), []);
});

test("What the file service wrote is told once, whoever sees it later", () => {
  const entries = new ObservedEntries();
  assert.deepEqual(told(entries.written("x", state())), ["create x", "chmod x", "write x"]);
  assert.deepEqual(told(entries.see("x", state(), true)), []);
  assert.deepEqual(told(entries.written("x", state({ sizeBytes: 9 }))), ["write x"]);
  assert.deepEqual(told(entries.see("x", state({ sizeBytes: 9 }), true)), []);
  assert.deepEqual(told(entries.written("empty", state({ sizeBytes: 0 }))), ["create empty", "chmod empty"]);
  entries.learn("y", state({ identity: "1" }));
  assert.deepEqual(told(entries.written("y", state({ identity: "1" }))), ["write y"]);
  assert.deepEqual(told(entries.written("y", state({ identity: "2" }))), ["create y", "chmod y", "write y"]);
  assert.deepEqual(told(entries.made("d", state())), ["create d", "chmod d"]);
  assert.deepEqual(told(entries.made("d/e/f", state())), ["create d/e", "create d/e/f", "chmod d/e"]);
  assert.deepEqual(told(entries.made("d")), []);
});

test("A move takes everything below along, silently", () => {
  const entries = new ObservedEntries();
  for (const name of ["a", "a/b", "a/b/c", "ab"]) entries.learn(name, state());
  assert.deepEqual(told(entries.moved("a", "z", state())), ["rename a", "create z"]);
  assert.deepEqual(told(entries.miss("a/b/c")), [], "nobody has to be told twice");
  assert.deepEqual(told(entries.see("z/b/c", state(), true)), []);
  assert.deepEqual(told(entries.moved("z", undefined, state())), ["rename z"]);
  assert.deepEqual(told(entries.moved(undefined, "y", state())), ["create y"]);
  assert.equal(entries.size, 2);
});

test("A parent is told before its children, and once", () => {
  const entries = new ObservedEntries();
  const expected = ["create a", "create a/b", "create a/b/c", "write a/b/c", "chmod a"];
  assert.deepEqual(told(entries.written("a/b/c", state())), expected);
  assert.deepEqual(told(entries.see("a", state({ permissions: 0o755 }), false)), []);
  assert.deepEqual(told(entries.see("a", state({ permissions: 0o700 }), false)), ["chmod a"]);
  assert.deepEqual(told(entries.moved(undefined, "x/y", state())), ["create x", "chmod x", "create x/y"]);
});
