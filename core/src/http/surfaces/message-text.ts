const LONG_BYTES = 64 * 1024;
const decoder = new TextDecoder();

/**
 * Decodes a message in JSON for protobuf-es, which looks at each character for keys that are there twice: that takes ten
 * times as long as parsing, and holds up the event loop. Of a long message it sees no characters, but parses it.
 * Delete this when it looks faster (2.17).
 */
export function messageText(bytes: Uint8Array): string {
  const text = decoder.decode(bytes);
  return bytes.length < LONG_BYTES ? text : (Object.freeze({ toString: () => text }) as unknown as string);
}
