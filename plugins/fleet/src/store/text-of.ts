import type { IncomingMessage } from "node:http";

/** The whole body of an answer. */
export async function textOf(answer: IncomingMessage): Promise<string> {
  return Buffer.concat((await answer.toArray()) as Buffer[]).toString();
}
