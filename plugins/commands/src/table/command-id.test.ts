import assert from "node:assert/strict";
import { it } from "node:test";
import { newCommandId } from "./command-label.js";

it("ids are version 7 UUIDs: they carry their time, sort by it, and differ", () => {
  const atMs = Date.UTC(2026, 0, 2);
  const id = newCommandId(atMs);
  assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  assert.equal(Number.parseInt(id.replace("-", "").slice(0, 12), 16), atMs);
  assert(newCommandId(atMs) < newCommandId(atMs + 1));
  assert.equal(new Set(Array.from({ length: 1000 }, () => newCommandId(atMs))).size, 1000);
});
