import { StringDecoder } from "node:string_decoder";
import type { Output } from "@coppice/core/backend";
import { event } from "./route.js";

interface OutputEventsOptions {
  /** Otherwise the output is text: what is no UTF-8 becomes U+FFFD. */
  readonly inBase64: boolean;
  /** More fields of every event. */
  readonly fields?: Readonly<Record<string, unknown>>;
}

/** Output as events whose data, put together by stream, are the whole text: no piece ends inside a character. */
export async function* outputEvents(
  output: AsyncIterable<Output>,
  { inBase64, fields }: OutputEventsOptions,
): AsyncGenerator<Readonly<Record<string, unknown>>> {
  const encoding = inBase64 ? "base64" : "utf8";
  const decoders = { stdout: new StringDecoder(encoding), stderr: new StringDecoder(encoding) };
  for await (const { stream, data } of output) {
    const name = stream === "stderr" ? "stderr" : "stdout";
    const text = decoders[name].write(data);
    if (text !== "") yield event(name, { data: text, ...fields });
  }
  for (const name of ["stdout", "stderr"] as const) {
    const text = decoders[name].end();
    if (text !== "") yield event(name, { data: text, ...fields });
  }
}
