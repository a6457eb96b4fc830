import assert from "node:assert/strict";
import { it } from "node:test";
import type { WatchEvent } from "@coppice/core/backend";
import { fakeClock } from "@coppice/core/testing";
import { Departures } from "./departures.js";

const MOVE_MS = 100;
const event = (type: WatchEvent["type"], name: string): readonly WatchEvent[] => [{ type, name }];

function recorded() {
  const clock = fakeClock();
  const told: string[] = [];
  const departures = new Departures({
    clock,
    moveMs: MOVE_MS,
    emit: ({ type, name }) => told.push(`${type} ${name}`),
  });
  return { clock, told, departures };
}

it("an entry that does not turn up in time is removed, and what came after it is told after it", async () => {
  const { clock, told, departures } = recorded();
  departures.report(event("create", "before"));
  departures.depart("a", "1", () => event("remove", "a"));
  departures.report(event("create", "after"));
  assert.deepEqual(told, ["create before"]);
  await clock.advance(MOVE_MS);
  assert.deepEqual(told, ["create before", "remove a", "create after"]);
  assert.equal(departures.has("a"), false);
});

it("an entry that turns up is moved at the moment when it went, and what was below it is not told", async () => {
  const { clock, told, departures } = recorded();
  departures.depart("a/b", "2", () => event("remove", "a/b"));
  departures.depart("a", "1", () => event("remove", "a"));
  departures.report(event("create", "after"));
  assert.equal(departures.nameOf("1"), "a");
  departures.arrive("1", [...event("rename", "a"), ...event("create", "z")]);
  assert.deepEqual(told, ["rename a", "create z", "create after"]);
  await clock.advance(MOVE_MS);
  assert.equal(told.length, 3);
});

it("a name that is taken again, or a watch that ends, waits for nothing", async () => {
  const { clock, told, departures } = recorded();
  for (const [index, name] of ["a", "a/b", "c"].entries())
    departures.depart(name, String(index), () => event("remove", name));
  departures.giveUp("a");
  assert.deepEqual(told, ["remove a", "remove a/b"]);
  departures.close();
  await clock.advance(MOVE_MS);
  assert.deepEqual(told, ["remove a", "remove a/b"]);
});
