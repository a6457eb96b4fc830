import assert from "node:assert/strict";
import { it } from "node:test";
import { OutputLines } from "./output-lines.js";

it("very many short lines are taken in many turns of the event loop, all of them", async () => {
  let count = 0;
  const lines = new OutputLines((_stream, line) => {
    assert.equal(line, "y");
    count += 1;
  });
  let turns = 0;
  let timer = setImmediate(function next() {
    turns += 1;
    timer = setImmediate(next);
  });
  try {
    await lines.push({ stream: "stdout", data: Buffer.from("y\n".repeat(500_000)) });
  } finally {
    clearImmediate(timer);
  }
  assert.equal(count, 500_000);
  assert.ok(turns > 10, `${turns} turns`);
});

it("lines are those of each stream, however their bytes come in", async () => {
  const seen: string[] = [];
  const lines = new OutputLines((stream, line) => seen.push(`${stream} ${line}`));
  const bytes = Buffer.from("größer\r\nb\n\n  c  \n");
  for (const byte of bytes) {
    await lines.push({ stream: "stdout", data: Buffer.from([byte]) });
    await lines.push({ stream: "stderr", data: Buffer.from("z") });
  }
  await lines.push({ stream: "stdout", data: Buffer.from("x".repeat(9_000)) });
  lines.end();
  assert.deepEqual(seen, [
    ...["größer", "b", "c"].map((line) => `stdout ${line}`),
    `stdout ${"x".repeat(4_096)}`,
    `stdout ${"x".repeat(4_096)}`,
    `stdout ${"x".repeat(808)}`,
    `stderr ${"z".repeat(bytes.length)}`,
  ]);
});
