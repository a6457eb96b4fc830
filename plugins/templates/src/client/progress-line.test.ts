import assert from "node:assert/strict";
import { it } from "node:test";
import { ProgressLine, transferProgress } from "./progress-line.js";

const MEBIBYTE = 2 ** 20;

function shown(isTTY: boolean) {
  let written = "";
  const stream = { isTTY, write: (text: string) => ((written += text), true) };
  const line = new ProgressLine((text) => void stream.write(`${text}\n`), stream);
  return { line, written: () => written.replaceAll("\r\u001B[K", "<clear>") };
}

it("a terminal has a bar below the lines, which goes at the end", () => {
  const { line, written } = shown(true);
  line.print("first");
  line.show(transferProgress({ phase: "pushing", done: MEBIBYTE, total: 4 * MEBIBYTE }));
  line.print("second");
  line[Symbol.dispose]();
  const bar = `pushing [${"#".repeat(6)}${"-".repeat(18)}]  25 %  1.0 of 4.0 MiB`;
  assert.equal(written(), `first\n<clear>${bar}<clear>second\n${bar}<clear>`);
});

it("without a terminal a phase has a line at its begin and at its end, and few between", () => {
  const { line, written } = shown(false);
  for (let done = 0; done <= 1_000; done += 1)
    line.show(transferProgress({ phase: "pulling", done, total: 1_000 }));
  line.show(transferProgress({ phase: "packing", done: 3 * MEBIBYTE, total: undefined }));
  line[Symbol.dispose]();
  assert.equal(written(), "pulling: 0.0 of 0.0 MiB\npulling: 0.0 of 0.0 MiB\npacking: 3.0 MiB\n");
});

it("a step of several lines, or with control characters, has one line that a terminal does not obey", () => {
  const { line, written } = shown(true);
  line.show({ what: "step 1 of 2", done: 0, total: undefined, text: "RUN a\n\u001B[2Jb" });
  assert.equal(written(), "<clear>step 1 of 2 RUN a \\x1b[2Jb");
});
