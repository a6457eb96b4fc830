import assert from "node:assert/strict";
import { it } from "node:test";
import { SeededRandom } from "@coppice/core/testing";
import { MarkedOutput } from "./marked-output.js";

const NONCE = "0123456789abcdef".repeat(2);

function read(bytes: Buffer, lengths: () => number): { readonly output: string; readonly marks: string[] } {
  const marks: string[] = [];
  let output = "";
  const marked = new MarkedOutput({
    isKnown: (nonce) => nonce === NONCE,
    onOutput: (data) => (output += data.toString("latin1")),
    onMark: ({ kind, contents }) => marks.push(`${output.length}:${kind}${contents.toString()}`),
    maxContents: 100,
  });
  for (let at = 0; at < bytes.length;) {
    const length = lengths();
    marked.feed(bytes.subarray(at, at + length));
    at += length;
  }
  marked.end();
  return { output, marks };
}

it("marks are found in whatever pieces the output comes, and what only looks like one is output", () => {
  const other = `\u001e${"f".repeat(32)}B\0`;
  const text = `late\u001e${NONCE}B\0one\u001e\u001e\u001eabc${other}two\u001e${NONCE}E0\u001f/tmp\0\u001e012`;
  const random = new SeededRandom(3);
  for (let round = 0; round < 200; round += 1) {
    const most = 1 + random.below(60);
    const { output, marks } = read(Buffer.from(text, "latin1"), () => 1 + random.below(most));
    assert.equal(output, `lateone\u001e\u001e\u001eabc${other}two\u001e012`);
    assert.deepEqual(marks, ["4:B", `${output.length - 4}:E0\u001f/tmp`]);
  }
});

it("a flood of bytes that might begin a mark is told from one without asking for each", () => {
  let asked = 0;
  const marked = new MarkedOutput({
    isKnown: () => asked++ < 0,
    onOutput: () => undefined,
    onMark: () => assert.fail("there is no mark"),
    maxContents: 100,
  });
  for (const unit of ["\u001e", "\u001e0", `\u001e${"0".repeat(31)}`, "\u001ex"])
    marked.feed(Buffer.from(unit.repeat(10_000)));
  assert.equal(asked, 0);
});
