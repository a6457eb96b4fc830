import { parseJson } from "@coppice/core";
import { z } from "zod";

const MAX_ID_LENGTH = 256;
const id = z.string().min(1).max(MAX_ID_LENGTH);

/** What a client sends by WebSocket. Bodies are JSON values, checked by their routes. */
export const socketMessage = z.discriminatedUnion("type", [
  z.object({
    type: z.literal("request"),
    id,
    method: z.string(),
    path: z.string().startsWith("/"),
    body: z.unknown().optional(),
    headers: z.record(z.string(), z.string()).nullish(),
  }),
  z.object({ type: z.literal("cancel"), id }),
]);

export type SocketMessage = z.infer<typeof socketMessage>;
export type SocketRequest = Extract<SocketMessage, { readonly type: "request" }>;

/** The message in a frame. @throws where it is none. */
export function messageOfFrame(data: Buffer, isBinary: boolean): SocketMessage {
  if (isBinary) throw new Error("messages are text");
  return socketMessage.parse(parseJson(data));
}
