import { parseJson } from "@coppice/core";

/** Limits of JSON that a registry sends. */
export interface JsonLimits {
  readonly maxMetadata: number;
  readonly maxValues: number;
}

/** Reads a stream to its end. @throws Error when it has more bytes than that; the stream is destroyed then. */
export async function readBounded(stream: AsyncIterable<Uint8Array>, mostBytes: number): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += chunk.byteLength;
    if (bytes > mostBytes) throw new Error(`the answer has more than ${mostBytes} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** Reads a stream of JSON. @throws Error when it is no JSON, or has more than the limits. */
export async function readJson(
  stream: AsyncIterable<Uint8Array>,
  { maxMetadata, maxValues }: JsonLimits,
): Promise<unknown> {
  return parseJson(await readBounded(stream, maxMetadata), maxValues);
}
