import assert from "node:assert/strict";
import { it } from "node:test";
import { parseClientFrame } from "./shell-sockets.js";

it("A frame with very many values is refused before it is parsed: that would hold up the event loop", () => {
  const many = Buffer.from(`{"type":"other","more":[${"{},".repeat(10_000)}{}]}`);
  assert.throws(() => parseClientFrame(many, false), { reason: "frame_invalid" });
  const long = Buffer.from(JSON.stringify({ type: "input", data: "a,[{".repeat(10_000) }));
  assert.equal(parseClientFrame(long, false).type, "input");
  assert.equal(parseClientFrame(Buffer.from('{"type":"other"}'), false).type, "unknown");
});
