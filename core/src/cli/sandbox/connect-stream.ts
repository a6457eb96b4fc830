import { ConnectError } from "@connectrpc/connect";
import { encodeEnvelope, transformSplitEnvelope } from "@connectrpc/connect/protocol";
import { z } from "zod";
import { ApiFailure } from "./sandbox-client.js";

const END_OF_STREAM = 0b10;
const MAX_BYTES = 0xffff_ffff;

const endOfStream = z.object({
  error: z.object({ code: z.string(), message: z.string().default("") }).optional(),
});

/** The body of a streaming request: one message in Connect's envelope. */
export function connectRequest(message: unknown): Uint8Array<ArrayBuffer> {
  return new Uint8Array(encodeEnvelope(0, Buffer.from(JSON.stringify(message))));
}

/**
 * The messages of a Connect stream in JSON (connectrpc.com/docs/protocol).
 * @throws ApiFailure with the error that ended the stream, or when it breaks off.
 */
export async function* connectMessages(body: AsyncIterable<Uint8Array>): AsyncGenerator<unknown> {
  try {
    for await (const { flags, data } of transformSplitEnvelope(MAX_BYTES)(body)) {
      const message: unknown = JSON.parse(Buffer.from(data).toString());
      if ((flags & END_OF_STREAM) === 0) {
        yield message;
        continue;
      }
      const { error } = endOfStream.parse(message);
      if (error === undefined) return;
      throw new ApiFailure(`${error.code}: ${error.message}`);
    }
  } catch (error) {
    // It ends inside an envelope.
    if (!(error instanceof ConnectError)) throw error;
  }
  throw new ApiFailure("the connection broke");
}
