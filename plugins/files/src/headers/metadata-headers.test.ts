import assert from "node:assert/strict";
import { it } from "node:test";
import { parseMetadataHeaders } from "./content-headers.js";

it("Every X-Metadata- header is an entry, nothing else is", () => {
  assert.deepEqual(
    parseMetadataHeaders({ "x-metadata-purpose": "a b", "x-metadata-__proto__": "c", "x-other": "d" }),
    {
      purpose: "a b",
      ["__proto__"]: "c",
    },
  );
  assert.deepEqual(parseMetadataHeaders({}), {});
});

it("Metadata that extended attributes cannot hold are refused", () => {
  const refused = (headers: Record<string, string>, reason: RegExp): void => {
    assert.throws(
      () => parseMetadataHeaders(headers),
      (error: Error & { code?: string }) => error.code === "invalid_argument" && reason.test(error.message),
    );
  };
  refused({ "x-metadata-": "v" }, /^invalid metadata: a key cannot be empty$/);
  refused({ [`x-metadata-${"k".repeat(247)}`]: "v" }, /^invalid metadata: a key is 247 bytes long/);
  refused({ "x-metadata-a": "caf\u00e9" }, /^invalid metadata: the value of 'a' is not printable ASCII$/);
  refused({ "x-metadata-a": "tab\there" }, /printable ASCII/);
  refused({ "x-metadata-a": "v".repeat(2100), "x-metadata-b": "v".repeat(2100) }, /take 4220 bytes/);
  assert.equal(Object.keys(parseMetadataHeaders({ [`x-metadata-${"k".repeat(246)}`]: "v" })).length, 1);
});
