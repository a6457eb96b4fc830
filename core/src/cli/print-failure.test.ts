import assert from "node:assert/strict";
import { it } from "node:test";
import { printFailure } from "./terminal.js";

it("a failure cannot steer the terminal that it is told on", () => {
  for (const [isTTY, shown] of [
    [true, "coppice: \\x1b[2Jgone\\x9b\n"],
    [false, "coppice: \u001B[2Jgone\u009B\n"],
  ] as const) {
    let written = "";
    printFailure("\u001B[2Jgone\u009B", { isTTY, write: (text) => ((written += String(text)), true) });
    assert.equal(written, shown);
  }
});
