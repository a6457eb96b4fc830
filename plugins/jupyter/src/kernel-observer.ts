import type { ChannelName } from "./kernel-channels.js";
import type { Kernel } from "./kernel.js";
import type { KernelMessage } from "./wire.js";

/** Sees what a kernel sends, except the answers to what the server asks for its own ends. */
export interface KernelObserver {
  /** False while nobody is there who could keep what is received. */
  readonly isWatching: boolean;
  /** A promise while it cannot take more: that channel of the kernel waits for it. */
  received(channel: ChannelName, message: KernelMessage): Promise<void> | undefined;
}

/** Follows a context through the kernels that come and go under it. */
export interface ContextObserver extends Omit<KernelObserver, "isWatching"> {
  starting(): void;
  /** A kernel is ready. Its end is told by its `gone`. */
  started(kernel: Kernel): void;
  /** The kernel is being replaced because somebody asked for it. */
  restarting(): void;
  /** The context is no more. */
  removed(): void;
}
