import { z } from "zod";

/** What a text of JSON says; undefined for one that is no JSON, or has another form: a newer version may have written it. */
export function parsedText<T>(schema: z.ZodType<T>, text: string): T | undefined {
  try {
    return schema.parse(JSON.parse(text));
  } catch {
    return undefined;
  }
}

/** Milliseconds since the Unix epoch, of which JavaScript can make a date. */
export const time = z.number().min(-8.64e15).max(8.64e15);
