import assert from "node:assert/strict";
import { it } from "node:test";
import { checkPreconditions, isConditional, isRangeWanted } from "./request-headers.js";

const MODIFIED_AT_MS = Date.parse("2025-06-01T12:00:00.750Z");
const SAME = "Sun, 01 Jun 2025 12:00:00 GMT";
const LATER = "Sun, 01 Jun 2025 12:00:01 GMT";
const EARLIER = "Sun, 01 Jun 2025 11:59:59 GMT";

it("A file that has not changed since is not sent again", () => {
  assert.equal(checkPreconditions({ "if-modified-since": SAME }, MODIFIED_AT_MS), "not modified");
  assert.equal(checkPreconditions({ "if-modified-since": EARLIER }, MODIFIED_AT_MS), "proceed");
  assert.equal(checkPreconditions({ "if-modified-since": "yesterday" }, MODIFIED_AT_MS), "proceed");
  assert.equal(checkPreconditions({}, MODIFIED_AT_MS), "proceed");
});

it("No entity tag matches but *, which comes before dates", () => {
  const withDate = { "if-modified-since": SAME };
  assert.equal(checkPreconditions({ ...withDate, "if-none-match": '"x"' }, MODIFIED_AT_MS), "proceed");
  assert.equal(checkPreconditions({ "if-none-match": "*" }, MODIFIED_AT_MS), "not modified");
  assert.equal(checkPreconditions({ "if-match": '"x"' }, MODIFIED_AT_MS), "failed");
  assert.equal(
    checkPreconditions({ "if-match": "*", "if-unmodified-since": EARLIER }, MODIFIED_AT_MS),
    "proceed",
  );
  assert.equal(checkPreconditions({ "if-unmodified-since": EARLIER }, MODIFIED_AT_MS), "failed");
  assert.equal(checkPreconditions({ "if-unmodified-since": SAME }, MODIFIED_AT_MS), "proceed");
});

it("If-Range keeps the range for the very version that the client has", () => {
  assert.equal(isRangeWanted({}, MODIFIED_AT_MS), true);
  assert.equal(isRangeWanted({ "if-range": SAME }, MODIFIED_AT_MS), true);
  assert.equal(isRangeWanted({ "if-range": EARLIER }, MODIFIED_AT_MS), false);
  assert.equal(isRangeWanted({ "if-range": LATER }, MODIFIED_AT_MS), false);
  assert.equal(isRangeWanted({ "if-range": '"x"' }, MODIFIED_AT_MS), false);
});

it("Ranges and conditions make a request one that is not compressed", () => {
  assert.equal(isConditional({ "accept-encoding": "gzip" }), false);
  assert.equal(isConditional({ range: "bytes=0-" }), true);
  assert.equal(isConditional({ "if-none-match": "*" }), true);
});
