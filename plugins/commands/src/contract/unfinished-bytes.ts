/** Number of bytes at the end, 0 to 3, that begin an incomplete UTF-8 character. Invalid UTF-8 counts as complete. */
export function unfinishedBytes(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back += 1) {
    const byte = bytes[bytes.length - back] ?? 0;
    const isContinuation = (byte & 0xc0) === 0x80;
    if (!isContinuation) return characterBytes(byte) > back ? back : 0;
  }
  return 0;
}

/** Length of the character that begins with this byte. */
function characterBytes(first: number): number {
  if (first < 0xc2 || first > 0xf4) return 1;
  if (first >= 0xf0) return 4;
  return first >= 0xe0 ? 3 : 2;
}
