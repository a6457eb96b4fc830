import assert from "node:assert/strict";
import { it } from "node:test";
import { LineFrames } from "./shell-sockets.js";

function frame(text: string, type = "stdout"): string {
  return JSON.stringify({ type, text });
}

it("Frames end with lines, and never inside a character", () => {
  const frames = new LineFrames(10);
  const push = (data: Uint8Array | string, stream: "stdout" | "stderr" = "stdout") =>
    frames.push({ stream, data: Buffer.from(data) });
  assert.equal(push("a\nb\nc"), frame("a\nb\n"));
  const euro = Buffer.from("€\n");
  assert.equal(push(euro.subarray(0, 2)), undefined);
  assert.equal(push("e\n", "stderr"), frame("e\n", "stderr"));
  assert.equal(push(euro.subarray(2)), frame("c€\n"));
  assert.equal(push("0123456789"), undefined);
  assert.equal(push("ab"), frame("0123456789ab"));
  push("no end");
  push(Uint8Array.of(0xe2), "stderr");
  assert.deepEqual(frames.finish(), [frame("no end"), frame("\uFFFD", "stderr")]);
  assert.deepEqual(new LineFrames(10).finish(), []);
});
