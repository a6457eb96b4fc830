import type { WarmUp } from "@coppice/core";
import type { CodeContexts } from "./code-contexts.js";
import { DEFAULT_LANGUAGE } from "./languages.js";

/** Gives sandboxes of a warm pool a kernel that runs and is connected, so that their first cell waits for nothing. */
export function warmKernels(contexts: CodeContexts): WarmUp {
  return {
    async prepare(sandbox, signal) {
      const { promise: givenUp, reject } = Promise.withResolvers<never>();
      const giveUp = (): void => reject(signal.reason);
      signal.addEventListener("abort", giveUp, { once: true });
      try {
        signal.throwIfAborted();
        // What goes on when it is given up ends with the sandbox.
        await Promise.race([givenUp, contexts.of(sandbox).warm(DEFAULT_LANGUAGE)]);
      } finally {
        signal.removeEventListener("abort", giveUp);
      }
    },
    handOut: (sandbox) => contexts.of(sandbox).renewEnvironment(),
  };
}
