import assert from "node:assert/strict";
import { it } from "node:test";
import { type Logger, SandboxError } from "@coppice/core";
import { errorAnswer } from "./shell-errors.js";

it("a sandbox that has ended is gone, what may go by is 503", () => {
  const statusOf = (reason: "sandbox_ended" | "sandbox_lost" | "server_busy") => {
    const { status, body } = errorAnswer(new SandboxError(reason, "why"), {
      error() {},
    } as unknown as Logger);
    return [status, body["code"], body["httpStatus"]];
  };
  assert.deepEqual(statusOf("sandbox_ended"), [410, "SESSION_DESTROYED", 410]);
  assert.deepEqual(statusOf("sandbox_lost"), [410, "SESSION_DESTROYED", 410]);
  assert.deepEqual(statusOf("server_busy"), [503, "INTERNAL_ERROR", 503]);
});
