import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { parseJson, TooManyValues } from "./parse-json.js";

const bytes = (text: string): Buffer => Buffer.from(text);

describe("parseJson", () => {
  it("parses what has few values, whatever its strings have", () => {
    const value = { "a": ["b,[{,", '\\",,,', "\\"], ",{[": { d: null } };
    assert.deepEqual(parseJson(bytes(JSON.stringify(value)), 6), value);
    assert.equal(parseJson(bytes(JSON.stringify("é,".repeat(1_000))), 0), "é,".repeat(1_000));
  });

  it("refuses what has many before it parses it", () => {
    for (const text of ["[1,2,3,4", "[[[[", '{"a":{},"b":{}', '["\\\\",[],[]'])
      assert.throws(() => parseJson(bytes(text), 3), TooManyValues);
    assert.throws(() => parseJson(bytes("[1,2,3"), 3), SyntaxError);
  });
});
