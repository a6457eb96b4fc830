import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { describe, it } from "node:test";
import { create, toBinary, toJsonString } from "@bufbuild/protobuf";
import type { Output } from "@coppice/core/backend";
import { ConnectResponseSchema, StartResponseSchema } from "../generated/process/process_pb.js";
import { outputEnvelopes } from "./process-events.js";

describe("output on its way to a process stream", () => {
  it("equals protobuf's own encoding, an envelope for each event", () => {
    const streams: readonly [Output["stream"], "stdout" | "stderr" | "pty", number][] = [
      ["stdout", "stdout", 32_768],
      ["stderr", "stderr", 32_768],
      ["terminal", "pty", 16_384],
    ];
    const sizes = [0, 1, 2, 3, 121, 122, 123, 124, 125, 126, 127, 128, 16_370, 16_383, 16_384, 16_385];
    const data = randomBytes(100_000);
    for (const [stream, name, eventBytes] of streams) {
      for (const size of [...sizes, 32_767, 32_768, 32_769, 65_536, 100_000]) {
        const piece: Output = { stream, data: data.subarray(0, size) };
        const events: Uint8Array[] = [];
        for (let at = 0; at < size; at += eventBytes) events.push(piece.data.subarray(at, at + eventBytes));
        for (const schema of [StartResponseSchema, ConnectResponseSchema]) {
          const messages = events.map((value) =>
            create(schema, { event: { event: { case: "data", value: { output: { case: name, value } } } } }),
          );
          assert.deepEqual(
            outputEnvelopes([piece], "proto").bytes,
            enveloped(messages.map((message) => toBinary(schema, message))),
            `${size} bytes of ${stream}`,
          );
          assert.equal(
            outputEnvelopes([piece], "json").bytes.toString("latin1"),
            enveloped(messages.map((message) => Buffer.from(toJsonString(schema, message)))).toString(
              "latin1",
            ),
            `${size} bytes of ${stream}`,
          );
        }
      }
    }
  });
});

function enveloped(messages: readonly Uint8Array[]): Buffer {
  return Buffer.concat(
    messages.flatMap((message) => {
      const head = Buffer.alloc(5);
      head.writeUInt32BE(message.length, 1);
      return [head, message];
    }),
  );
}
