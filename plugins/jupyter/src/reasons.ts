import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons({
  not_found: {
    context_not_found: "There is no such context of code. | List the contexts.",
    kernel_not_found: "There is no such kernel. | List the kernels.",
    kernel_spec_not_found: "No kernel has this name. | List the kernel specs.",
    session_not_found: "There is no such Jupyter session. | List the sessions.",
  },
  already_exists: {
    message_id_in_use: "A Jupyter message has this `msg_id`. | Choose another.",
  },
  resource_exhausted: {
    context_limit_reached: "The sandbox has as many contexts as it may. | Remove one; see `jupyter`.",
    session_limit_reached: "The sandbox has as many sessions as it may. | Close one; see `jupyter`.",
    kernel_client_limit_reached: "The kernel has as many clients as it may. | Close one; see `jupyter`.",
    ports_exhausted: "No port is free for a kernel. | See `jupyter`.",
  },
  failed_precondition: {
    kernel_start_failed: "A kernel did not start, or ended while it did. | Read the message and the log.",
    kernel_stuck: "A kernel goes on with a cell that was given up. | Restart the context.",
  },
  aborted: {
    context_removed: "The context was removed during the request. | Use another.",
  },
  unimplemented: {
    template_has_no_kernel: "The template has no kernel of the language. | See `docs/compatibility.md`.",
  },
});
