import type { ServerResponse } from "node:http";
import { type HandlerContext, createContextKey } from "@connectrpc/connect";
import { writeChunk } from "./write-chunk.js";

/** The answer of a streaming RPC, for messages that are encoded already. */
export interface MessageStream {
  /** Encoding that the client reads: JSON, or binary protobuf. */
  readonly codec: "json" | "proto";
  /**
   * Sends whole envelopes, split in any way, after everything that the handler has yielded. Call it only after the
   * first yielded message, which sends the headers. Nothing is copied: the parts must not change. Resolves when there
   * is room for more, or the client is gone.
   */
  send(envelopes: readonly Uint8Array[]): Promise<void>;
}

/** Key of the response in the context of an RPC. */
export const responseKey = createContextKey<ServerResponse | undefined>(undefined, {
  description: "response of an RPC",
});

/**
 * The stream of an RPC's answer. Connect passes every message through half a dozen generators and copies; floods of
 * messages can bypass them here.
 */
export function messageStreamOf(context: HandlerContext): MessageStream {
  const response = context.values.get(responseKey);
  if (response === undefined) throw new Error("this RPC did not come through a surface");
  const isJson = context.responseHeader.get("content-type") === "application/connect+json";
  return {
    codec: isJson ? "json" : "proto",
    async send(envelopes) {
      if (!response.headersSent) throw new Error("a stream begins with a message that its handler yields");
      await writeChunk(response, envelopes);
    },
  };
}
