import type { ChannelName } from "../transport/kernel-channels.js";
import type { KernelMessage } from "../transport/wire.js";

/** Receives a kernel's messages, except for answers to the server's internal requests. */
export interface KernelObserver {
  /** False while no client could keep a message. */
  readonly isWatching: boolean;
  /** A promise while it cannot take more: the kernel's channel waits for it. */
  received(channel: ChannelName, message: KernelMessage): Promise<void> | undefined;
}
