import type { Kernel } from "../kernel/kernel.js";
import type { KernelObserver } from "../kernel/kernel-observer.js";

/** Observes a context across the kernels that replace each other in it. */
export interface ContextObserver extends Omit<KernelObserver, "isWatching"> {
  starting(): void;
  /** A kernel is ready. Its `gone` reports its end. */
  started(kernel: Kernel): void;
  /** The kernel is being replaced at a client's request. */
  restarting(): void;
  removed(): void;
}
