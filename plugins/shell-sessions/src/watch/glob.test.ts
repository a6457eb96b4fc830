import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { isInGlob, isNameInGlob } from "./glob.js";

describe("globs of watches", () => {
  it("match paths, and what is below them", () => {
    for (const [path, pattern, expected] of [
      ["a.ts", "*.ts", true],
      [".a.ts", "*.ts", true],
      ["a.tsx", "*.ts", false],
      ["src/a.ts", "*.ts", false],
      ["src/a.ts", "src/*.ts", true],
      ["src/a/b.ts", "src/**/*.ts", true],
      ["src/b.ts", "src/**/*.ts", true],
      ["src/a/b.ts", "src/*.ts", false],
      ["src/a/b.ts", "src", true],
      ["src/a/b.ts", "src/", true],
      ["lib/src/a", "src", false],
      ["a/b/c/b/d", "**/b/d", true],
      ["abc", "a?c", true],
      ["ac", "a?c", false],
      ["a+c", "a+c", true],
    ] as const)
      assert.equal(isInGlob(path, pattern), expected, `${path} ${pattern}`);
    assert.equal(isNameInGlob("aXbYc", "a*b*c"), true);
    assert.equal(isNameInGlob("aXbY", "a*b*c"), false);
  });

  it("take no more time for patterns that are made to", () => {
    const name = "a".repeat(255);
    // A regular expression has not answered the second one after hours.
    assert.equal(isNameInGlob(name, `${"*a".repeat(127)}b`), false);
    assert.equal(isInGlob("a/".repeat(2_000), `${"**/a/".repeat(50)}b`), false);
  });
});
