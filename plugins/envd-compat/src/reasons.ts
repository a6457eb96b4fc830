import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons({
  not_found: { path_reserved: "The path is the control plane's alone. | Do not call it." },
  permission_denied: {
    debug_sandbox_remote: "The debug sandbox serves this machine alone. | Make a sandbox.",
  },
});
