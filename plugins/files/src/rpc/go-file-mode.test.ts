import assert from "node:assert/strict";
import { it } from "node:test";
import { goFileMode } from "./entry-info.js";

it("A mode is printed the way Go prints it", () => {
  const expected: Readonly<Record<number, string>> = {
    0o100644: "-rw-r--r--",
    0o040755: "drwxr-xr-x",
    0o120777: "Lrwxrwxrwx",
    0o041777: "dtrwxrwxrwx",
    0o104755: "urwxr-xr-x",
    0o042755: "dgrwxr-xr-x",
    0o020620: "Dcrw--w----",
    0o060660: "Drw-rw----",
    0o010600: "prw-------",
    0o140700: "Srwx------",
    0o106000: "ug---------",
  };
  for (const [mode, text] of Object.entries(expected)) {
    assert.equal(goFileMode(Number(mode)), text, `0o${Number(mode).toString(8)}`);
  }
});
