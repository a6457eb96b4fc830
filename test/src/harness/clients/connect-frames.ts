/** One message of a Connect stream: a flag byte, a length, and the JSON. */
export interface Frame {
  readonly flags: number;
  readonly message: unknown;
}

/** Packs a message as the SDKs do. `lengthBytes` may lie. */
export function packFrame(
  payload: string,
  { flags = 0, lengthBytes = Buffer.byteLength(payload) } = {},
): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt8(flags, 0);
  head.writeUInt32BE(lengthBytes, 1);
  return Buffer.concat([head, Buffer.from(payload)]);
}

/** Unpacks a whole stream. @throws Error when it breaks off inside a frame, SyntaxError when one is no JSON. */
export function unpackFrames(stream: Buffer): readonly Frame[] {
  const frames: Frame[] = [];
  for (let offset = 0; offset < stream.length;) {
    const end = offset + 5 + stream.readUInt32BE(offset + 1);
    if (end > stream.length) throw new Error(`the stream breaks off inside a frame at byte ${offset}`);
    const message = JSON.parse(stream.toString("utf8", offset + 5, end)) as unknown;
    frames.push({ flags: stream.readUInt8(offset), message });
    offset = end;
  }
  return frames;
}
