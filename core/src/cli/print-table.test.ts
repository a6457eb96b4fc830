import assert from "node:assert/strict";
import { it } from "node:test";
import { tableText } from "./terminal.js";

const rows = [
  ["i1", "code-interpreter-v1", ""],
  ["i22", "base", "paused"],
];

it("a table has a heading and columns on a terminal, and tabs for a program", () => {
  const shown =
    "ID   TEMPLATE             STATE\ni1   code-interpreter-v1\ni22  base                 paused\n";
  assert.equal(tableText(["ID", "TEMPLATE", "STATE"], rows, true), shown);
  assert.equal(tableText(["ID", "TEMPLATE"], [], true), "ID  TEMPLATE\n");
  assert.equal(tableText(["ID"], rows, false), "i1\tcode-interpreter-v1\t\ni22\tbase\tpaused\n");
  assert.equal(tableText(["ID"], [], false), "");
  assert.equal(tableText(["ID", "X"], [["a\u001B[31m\nb", "c"]], true), "ID           X\na\\x1b[31m b  c\n");
});
