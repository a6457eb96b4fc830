import assert from "node:assert/strict";
import { it } from "node:test";
import { secretEqual } from "./secrets.js";

it("secrets are equal to the same text alone, whatever its length and its characters", () => {
  for (const secret of ["e2b_1234", "ü", "a".repeat(500)]) {
    assert.ok(secretEqual(secret, secret));
    for (const given of ["", secret.slice(1), `${secret}x`, "x".repeat(secret.length), secret.toUpperCase()])
      assert.ok(!secretEqual(secret, given), given);
  }
});
