import { type LiveSandbox, unlessAborted, type WarmUp } from "@coppice/core";
import type { CodeContexts } from "./code-contexts.js";

/** Prepares kernels in warm sandboxes. @param isEager true where a kernel is started beside the zygote. */
export function warmKernels(contexts: CodeContexts, isEager: (sandbox: LiveSandbox) => boolean): WarmUp {
  return {
    async prepare(sandbox, signal) {
      signal.throwIfAborted();
      const own = await contexts.of(sandbox);
      // Work that continues after this is aborted ends with the sandbox.
      await unlessAborted(signal, () => own.prepare({ withKernel: isEager(sandbox) }));
    },
    async handOut(sandbox) {
      await (await contexts.of(sandbox)).renewEnvironment();
    },
  };
}
