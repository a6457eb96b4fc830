import assert from "node:assert/strict";
import { it } from "node:test";
import { chooseCoding } from "./request-headers.js";

const BOTH = ["gzip", "identity"] as const;

it("The coding of the highest quality is chosen, the first listed of equals", () => {
  const expected: Readonly<Record<string, string>> = {
    "": "identity",
    "gzip, deflate": "gzip",
    "GZIP": "gzip",
    "identity, gzip": "identity",
    "gzip;q=0.5": "gzip",
    "gzip;q=0.5, identity;q=0.8": "identity",
    "br, zstd": "identity",
    "br;q=1, gzip ; q=0.1": "gzip",
    "gzip;q=0": "identity",
    "*": "identity",
    "identity;q=0, *": "gzip",
    "gzip;q=0, *;q=0.5": "identity",
    "gzip;q=nonsense": "gzip",
    ",,;": "identity",
  };
  for (const [header, coding] of Object.entries(expected)) {
    assert.equal(chooseCoding(header, BOTH), coding, `Accept-Encoding: ${header}`);
  }
});

it("A client that refuses everything on offer gets nothing", () => {
  assert.equal(chooseCoding("identity;q=0", BOTH), undefined);
  assert.equal(chooseCoding("br, *;q=0", BOTH), undefined);
  assert.equal(chooseCoding("gzip, identity;q=0", ["identity"]), undefined);
  assert.equal(chooseCoding("gzip, *;q=0", BOTH), "gzip");
});
