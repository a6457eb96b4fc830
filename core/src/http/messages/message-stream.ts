import type { ServerResponse } from "node:http";
import { type ContextValues, type HandlerContext, createContextKey } from "@connectrpc/connect";
import { writeChunk } from "./write-chunk.js";

/** The answer of an RPC that streams, for messages that are encoded already. */
export interface MessageStream {
  /** Encoding that the client reads: JSON, or binary protobuf. */
  readonly codec: "json" | "proto";
  /**
   * Sends whole envelopes as they are, cut in any way, behind all that the handler has yielded. Only after the first
   * message that it yields, which the headers come with. Nothing is copied: the parts must stay as they are. Resolves
   * when there is room for more, or the client is gone.
   */
  send(envelopes: readonly Uint8Array[]): Promise<void>;
}

const responseKey = createContextKey<ServerResponse | undefined>(undefined, {
  description: "response of an RPC",
});

/** Puts the response where `messageStreamOf` finds it. */
export function bindResponse(values: ContextValues, response: ServerResponse): ContextValues {
  return values.set(responseKey, response);
}

/**
 * The stream that an RPC answers with. Connect takes every message through half a dozen of generators and copies;
 * what there is a flood of can go around them.
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
