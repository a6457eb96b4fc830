import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons({
  invalid_argument: {
    archive_invalid: "A tar archive is broken or too large. | Read the message; see `commands-v1`.",
    archive_unsafe: "An entry of an archive leaves its directory. | Remove the entry.",
  },
  not_found: {
    run_not_found: "There is no such one-shot run. | Results are kept for `commands-v1.runsKept`.",
  },
  already_exists: {
    sandbox_name_taken: "A sandbox of yours has the name. | Choose another name.",
  },
  failed_precondition: {
    archive_failed: "tar failed in the sandbox. | Read the message.",
  },
  unavailable: {
    sandbox_setup_failed: "A new sandbox could not be prepared. | Read the message.",
  },
});
