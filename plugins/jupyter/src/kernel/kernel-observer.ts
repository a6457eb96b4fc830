import type { ChannelName } from "../transport/kernel-channels.js";
import type { KernelMessage } from "../transport/wire.js";

/** Sees what a kernel sends, except the answers to what the server asks for its own ends. */
export interface KernelObserver {
  /** False while nobody is there who could keep what is received. */
  readonly isWatching: boolean;
  /** A promise while it cannot take more: that channel of the kernel waits for it. */
  received(channel: ChannelName, message: KernelMessage): Promise<void> | undefined;
}
