import type { Kernel } from "../kernel/kernel.js";
import type { KernelObserver } from "../kernel/kernel-observer.js";

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
