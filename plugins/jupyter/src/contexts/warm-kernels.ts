import type { LiveSandbox, WarmUp } from "@coppice/core";
import type { CodeContexts } from "./code-contexts.js";

/**
 * Starts in sandboxes of a warm pool what their first cell would wait for.
 * @param isEager true where a kernel is to run, and not only what kernels are forked from.
 */
export function warmKernels(contexts: CodeContexts, isEager: (sandbox: LiveSandbox) => boolean): WarmUp {
  return {
    async prepare(sandbox, signal) {
      const { promise: givenUp, reject } = Promise.withResolvers<never>();
      const giveUp = (): void => reject(signal.reason);
      signal.addEventListener("abort", giveUp, { once: true });
      try {
        signal.throwIfAborted();
        const own = await contexts.of(sandbox);
        // Work that goes on when it is given up ends with the sandbox.
        await Promise.race([givenUp, own.prepare({ withKernel: isEager(sandbox) })]);
      } finally {
        signal.removeEventListener("abort", giveUp);
      }
    },
    async handOut(sandbox) {
      await (await contexts.of(sandbox)).renewEnvironment();
    },
  };
}
