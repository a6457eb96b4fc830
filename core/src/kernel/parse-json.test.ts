import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { parseJson, TooManyValues, ValueCount } from "./parse-json.js";

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

  it("counts the same in pieces, wherever they are cut", () => {
    const text = bytes('{"a\\"[[":["\\\\",[],{},[1,2]],"é,,":3}');
    const least = [...Array(20).keys()].find((most) => {
      try {
        new ValueCount(most).add(text);
        return true;
      } catch {
        return false;
      }
    });
    assert.equal(least, 10);
    for (let cut = 0; cut <= text.length; cut += 1) {
      const inPieces = (most: number): void => {
        const count = new ValueCount(most);
        for (const piece of [text.subarray(0, cut), bytes(""), text.subarray(cut)]) count.add(piece);
      };
      inPieces(10);
      assert.throws(() => inPieces(9), TooManyValues);
    }
  });
});
