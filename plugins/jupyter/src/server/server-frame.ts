import { randomUUID } from "node:crypto";
import type { ChannelName } from "../transport/kernel-channels.js";
import {
  encodeFrame,
  isJsonObject,
  type EncodedFrame,
  type Framing,
  type ServerFrame,
} from "./client-frame.js";
import type { KernelMessage } from "../transport/wire.js";

/** A message for clients, encoded once for each framing. */
export class SharedFrame {
  readonly frame: ServerFrame;
  readonly sizeBytes: number;
  readonly #encoded = new Map<Framing, EncodedFrame>();

  constructor(frame: ServerFrame) {
    this.frame = frame;
    const { header, parentHeader, metadata, content, buffers } = frame;
    this.sizeBytes = [header, parentHeader, metadata, content, ...buffers].reduce(
      (sum, { length }) => sum + length,
      0,
    );
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
  const { id, type, session = "", header, parentHeader, metadata, content, buffers } = message;
  // A kernel is untrusted: its message must not break the surrounding text.
  const unchecked = [header, parentHeader, metadata, ...(message.isChecked === true ? [] : [content])];
  if (!unchecked.every(isJsonObject)) return undefined;
  return new SharedFrame({ channel, id, type, session, header, parentHeader, metadata, content, buffers });
}

export interface SyntheticFrame {
  /** iopub when absent. */
  readonly channel?: "shell" | "control";
  readonly type: string;
  readonly content: object;
  /** The kernel's last session: JupyterLab drops pending messages of any other. */
  readonly session: string;
  readonly parentHeader?: Buffer | undefined;
}

/** Frame of a message that the server sends in place of the kernel. */
export function syntheticFrame({
  channel,
  type,
  content,
  session,
  parentHeader,
}: SyntheticFrame): SharedFrame {
  const id = randomUUID();
  const date = new Date().toISOString();
  const header = { msg_id: id, msg_type: type, session, username: "coppice", date, version: "5.3" };
  return new SharedFrame({
    channel: channel ?? "iopub",
    id,
    type,
    session,
    header: Buffer.from(JSON.stringify(header)),
    parentHeader: parentHeader ?? Buffer.from("{}"),
    metadata: Buffer.from("{}"),
    content: Buffer.from(JSON.stringify(content)),
    buffers: [],
  });
}
