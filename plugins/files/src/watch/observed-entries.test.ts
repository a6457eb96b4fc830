import assert from "node:assert/strict";
import { it } from "node:test";
import type { WatchEvent } from "@coppice/core/backend";
import type { EntryState } from "./entry-state.js";
import { ObservedEntries } from "./observed-entries.js";

const state = (changes: Partial<EntryState> = {}): EntryState => ({
  kind: "file",
  sizeBytes: 2,
  bornAtMs: 500,
  accessedAtMs: 500,
  modifiedAtMs: 1_000,
  changedAtMs: 1_000,
  permissions: 0o644,
  linkCount: 1,
  identity: undefined,
  ...changes,
});
const told = (events: readonly WatchEvent[]): readonly string[] =>
  events.map(({ name, type }) => `${type} ${name}`);

it("Looks at a file are told by what differs from the last look", () => {
  const at = (modifiedAtMs: number, changedAtMs = modifiedAtMs) => ({ modifiedAtMs, changedAtMs });
  for (const [what, later, expected] of [
    ["nothing", {}, []],
    ["it was read", { accessedAtMs: 2_000 }, []],
    ["it grew", { sizeBytes: 3, ...at(2_000) }, ["write x"]],
    ["it was written in its place", at(2_000), ["write x"]],
    ["its permissions", { permissions: 0o600, changedAtMs: 2_000 }, ["chmod x"]],
    ["its owner", { changedAtMs: 2_000 }, ["chmod x"]],
    ["it got a second name", { linkCount: 2, changedAtMs: 2_000 }, []],
    ["touched", { accessedAtMs: 2_000, ...at(2_000) }, ["chmod x"]],
    ["dated back", at(700, 2_000), ["chmod x"]],
    ["dated to come", at(9_000, 2_000), ["chmod x"]],
    ["written, then its owner", { sizeBytes: 3, ...at(2_000, 3_000) }, ["write x", "chmod x"]],
    ["its permissions, then written", { permissions: 0o600, ...at(2_000) }, ["chmod x", "write x"]],
  ] as const) {
    const entries = new ObservedEntries();
    entries.learn("x", state());
    assert.deepEqual(told(entries.see("x", state(later))), expected, what);
    assert.deepEqual(told(entries.see("x", state(later))), [], `${what}, once`);
  }
});

it("What was seen already when it came is told when the host says so", () => {
  const entries = new ObservedEntries();
  assert.deepEqual(told(entries.appear("x", state())), ["create x"]);
  assert.deepEqual(told(entries.see("x", state())), [], "a look alone tells nothing");
  assert.deepEqual(told(entries.see("x", state(), ["write"])), ["write x"]);
  assert.deepEqual(told(entries.see("x", state(), ["write"])), [], "once");
  entries.appear("y", state(), ["write"]);
  assert.deepEqual(told(entries.see("y", state(), ["write"])), [], "it was told with its coming");
  const linked = state({ linkCount: 2, changedAtMs: 2_000 });
  assert.deepEqual(
    told(entries.see("y", linked, ["write"])),
    ["chmod y"],
    "the host says that it is not the link",
  );
});

it("A directory is not written, and what is gone is told with all that was below it", () => {
  const entries = new ObservedEntries();
  const directory = state({ kind: "directory" });
  assert.deepEqual(told(entries.appear("d", directory, [])), ["create d"]);
  const fuller = { ...directory, modifiedAtMs: 2_000, changedAtMs: 2_000 };
  assert.deepEqual(told(entries.see("d", fuller)), []);
  assert.deepEqual(told(entries.see("d", { ...fuller, changedAtMs: 3_000 })), ["chmod d"]);
  assert.deepEqual(told(entries.appear("d/e/f", state(), ["write"])), [
    "create d/e",
    "create d/e/f",
    "write d/e/f",
  ]);
  assert.deepEqual(told(entries.missTree("d/e/f")), ["remove d/e/f"]);
  assert.deepEqual(told(entries.missTree("d")), ["remove d/e", "remove d"]);
  assert.deepEqual(told(entries.missTree("d")), []);
});

it("What the file service wrote is told once, whoever sees it later", () => {
  const entries = new ObservedEntries();
  const write = (name: string, changes: Partial<EntryState> = {}) =>
    told(entries.written(name, { isEmpty: changes.sizeBytes === 0, state: state(changes) }));
  assert.deepEqual(write("x"), ["create x", "chmod x", "write x"]);
  assert.deepEqual(told(entries.see("x", state())), []);
  assert.deepEqual(write("x", { sizeBytes: 9 }), ["write x"]);
  assert.deepEqual(told(entries.see("x", state({ sizeBytes: 9 }))), []);
  assert.deepEqual(write("empty", { sizeBytes: 0 }), ["create empty", "chmod empty"]);
  entries.learn("y", state({ identity: "1" }));
  assert.deepEqual(write("y", { identity: "1" }), ["write y"]);
  assert.deepEqual(write("y", { identity: "2" }), ["create y", "chmod y", "write y"]);
  const directory = state({ kind: "directory" });
  assert.deepEqual(told(entries.made("d", directory)), ["create d", "chmod d"]);
  assert.deepEqual(told(entries.made("d/e/f", directory)), ["create d/e", "create d/e/f", "chmod d/e"]);
  assert.deepEqual(told(entries.made("d")), []);
});

it("A move takes everything below along, silently, and what is held stays so until it is gone", () => {
  const entries = new ObservedEntries();
  const released: string[] = [];
  for (const name of ["a", "a/b", "a/b/c", "ab"]) {
    entries.learn(name, state({ kind: name === "a/b/c" ? "file" : "directory", identity: `id of ${name}` }));
    entries.hold(name, { isRemoved: () => undefined, state, release: () => void released.push(name) });
  }
  assert.deepEqual(told(entries.moved("a", "z", entries.stateOf("a"))), ["rename a", "create z"]);
  assert.deepEqual(told(entries.missTree("a/b/c")), [], "nobody has to be told twice");
  const below = state({ identity: "id of a/b/c" });
  assert.deepEqual(told(entries.see("z/b/c", below)), []);
  assert.equal(entries.nameOf("id of a/b/c"), "z/b/c");
  assert.deepEqual(released, []);
  assert.deepEqual(told(entries.moved("z", undefined)), ["rename z"]);
  assert.deepEqual(new Set(released), new Set(["a", "a/b", "a/b/c"]));
  assert.deepEqual(told(entries.moved(undefined, "y", state())), ["create y"]);
  assert.deepEqual(told(entries.leave("ab")), ["rename ab"]);
  assert.equal(entries.size, 1);
});

it("A parent is told before its children, and once", () => {
  const entries = new ObservedEntries();
  const written = { isEmpty: false, state: state() };
  const expected = ["create a", "create a/b", "create a/b/c", "write a/b/c", "chmod a"];
  assert.deepEqual(told(entries.written("a/b/c", written)), expected);
  const directory = state({ kind: "directory", permissions: 0o755 });
  assert.deepEqual(told(entries.see("a", directory)), []);
  assert.deepEqual(told(entries.see("a", { ...directory, permissions: 0o700 })), ["chmod a"]);
  assert.deepEqual(told(entries.moved(undefined, "x/y", state())), ["create x", "chmod x", "create x/y"]);
});
