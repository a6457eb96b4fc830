import { randomUUID } from "node:crypto";
import type { ChannelName } from "../transport/kernel-channels.js";
import {
  encodeFrame,
  isJsonObject,
  type EncodedFrame,
  type Framing,
  type ServerFrame,
} from "./client-frame.js";
import { headerOf, type KernelMessage, sizeOf } from "../transport/wire.js";

/** A message for clients, encoded once for each framing. */
export class SharedFrame {
  readonly frame: ServerFrame;
  readonly sizeBytes: number;
  readonly #encoded = new Map<Framing, EncodedFrame>();

  constructor(frame: ServerFrame) {
    this.frame = frame;
    const { header, parentHeader, metadata, content, buffers } = frame;
    const parts = [header, parentHeader, metadata, content, ...buffers];
    this.sizeBytes = sizeOf(parts);
  }

  encoded(framing: Framing): EncodedFrame {
    let encoded = this.#encoded.get(framing);
    if (encoded === undefined) {
      encoded = encodeFrame(this.frame, framing);
      this.#encoded.set(framing, encoded);
    }
    return encoded;
  }
}

/** The clients' frame of a kernel's message; undefined when a client could not read it. */
export function sharedFrameOf(channel: ChannelName, message: KernelMessage): SharedFrame | undefined {
  const { session = "", header, parentHeader, metadata, content } = message;
  // A kernel is untrusted: its message must not break the surrounding text.
  const unchecked = [header, parentHeader, metadata, ...(message.isChecked === true ? [] : [content])];
  if (!unchecked.every(isJsonObject)) return undefined;
  return new SharedFrame({ ...message, channel, session });
}

interface SyntheticFrame {
  /** iopub when absent. */
  readonly channel?: "shell" | "control";
  readonly type: string;
  readonly content: object;
  /** The kernel's last session: JupyterLab drops pending messages of any other. */
  readonly session: string;
  readonly parentHeader?: Buffer | undefined;
}

/** Frame of a message that the server sends in place of the kernel. */
export function syntheticFrame(message: SyntheticFrame): SharedFrame {
  const { channel = "iopub", type, content, session, parentHeader = Buffer.from("{}") } = message;
  const id = randomUUID();
  return new SharedFrame({
    channel,
    id,
    type,
    session,
    header: headerOf({ id, type, session }),
    parentHeader,
    metadata: Buffer.from("{}"),
    content: Buffer.from(JSON.stringify(content)),
    buffers: [],
  });
}
