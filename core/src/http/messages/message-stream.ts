import type { ServerResponse } from "node:http";
import { createContextKey, type HandlerContext } from "@connectrpc/connect";
import { holdBytes, releaseBytes } from "../../bounds/held-bodies.js";

/** The answer of a streaming RPC, for messages that are encoded already. */
export interface MessageStream {
  /** Encoding that the client reads: JSON, or binary protobuf. */
  readonly codec: "json" | "proto";
  /**
   * Sends whole envelopes after everything that the handler has yielded. Call it only after the first yielded message,
   * which sends the headers. Nothing is copied: resolves when the system has all of it, or with false when the client is
   * gone. The bytes must not change before. @throws SandboxError server_busy when there is no room for what clients have
   * not taken.
   */
  send(envelopes: Uint8Array): Promise<boolean>;
}

/** Key of the response in the context of an RPC. */
export const responseKey = createContextKey<ServerResponse | undefined>(undefined);

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
      // All of a reused block stays in memory, however little of it is sent.
      const { byteLength } = envelopes.buffer;
      holdBytes(response.req, byteLength);
      const isSent = await written(response, envelopes);
      releaseBytes(response.req, byteLength);
      return isSent;
    },
  };
}

function written(response: ServerResponse, bytes: Uint8Array): Promise<boolean> {
  if (response.destroyed) return Promise.resolve(false);
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const leave = (): void => resolve(false);
  // A response whose socket is destroyed may never call back.
  response.on("close", leave);
  response.write(bytes, (error) => {
    response.off("close", leave);
    resolve(!error);
  });
  return promise;
}
