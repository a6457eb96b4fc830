import assert from "node:assert/strict";
import { it } from "node:test";
import { severalTenants } from "@coppice/core";
import { PageMemory } from "./log-routes.js";

it("Pages that their clients do not take have room together up to a limit", () => {
  const room = new PageMemory(100);
  const first = room.take("acme", 80);
  assert.throws(() => room.take("acme", 30), { code: "unavailable" });
  first.shrink(60);
  const second = room.take("acme", 40);
  assert.throws(() => room.take("acme", 1), { code: "unavailable" });
  second[Symbol.dispose]();
  second[Symbol.dispose]();
  first.shrink(90);
  assert.throws(() => room.take("acme", 41), { code: "unavailable" });
  first[Symbol.dispose]();
  room.take("acme", 100)[Symbol.dispose]();
});

it("Pages that one tenant does not take leave room for those of others", () => {
  const room = new PageMemory(100, severalTenants());
  using _evil = room.take("evil", 50);
  assert.throws(() => room.take("evil", 2), { code: "unavailable" });
  using _acme = room.take("acme", 25);
});
