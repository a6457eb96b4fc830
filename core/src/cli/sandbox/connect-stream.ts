import { z } from "zod";
import { ApiFailure } from "./sandbox-client.js";

const HEAD_BYTES = 5;
const END_OF_STREAM = 0b10;

const endOfStream = z.object({
  error: z.object({ code: z.string(), message: z.string().default("") }).optional(),
});

/** The body of a request that opens a stream: one message in Connect's envelope. */
export function connectRequest(message: unknown): Uint8Array<ArrayBuffer> {
  const payload = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(HEAD_BYTES);
  head.writeUInt32BE(payload.length, 1);
  return new Uint8Array(Buffer.concat([head, payload]));
}

/**
 * The messages of a Connect stream in JSON (connectrpc.com/docs/protocol).
 * @throws ApiFailure with the error that ended the stream, or when it breaks off.
 */
export async function* connectMessages(body: AsyncIterable<Uint8Array>): AsyncGenerator<unknown> {
  let held: Buffer = Buffer.alloc(0);
  for await (const chunk of body) {
    held = held.length === 0 ? Buffer.from(chunk) : Buffer.concat([held, chunk]);
    for (;;) {
      if (held.length < HEAD_BYTES) break;
      const endByte = HEAD_BYTES + held.readUInt32BE(1);
      if (held.length < endByte) break;
      const message: unknown = JSON.parse(held.toString("utf8", HEAD_BYTES, endByte));
      if ((held.readUInt8(0) & END_OF_STREAM) !== 0) {
        const { error } = endOfStream.parse(message);
        if (error === undefined) return;
        throw new ApiFailure(`${error.code}: ${error.message}`);
      }
      held = held.subarray(endByte);
      yield message;
    }
  }
  throw new ApiFailure("the connection broke");
}
