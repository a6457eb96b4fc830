import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons({
  invalid_argument: {
    process_selector_invalid: "A command is named by neither pid nor id. | Use the pid of its start.",
  },
  deadline_exceeded: { request_timeout: "The time of a request is over. | Ask for more." },
  not_found: { process_log_not_found: "No log of such a command is kept. | See `commands.log`." },
  failed_precondition: { stdin_not_closable: "The input of a terminal cannot be closed. | Send Ctrl-D." },
  unavailable: {
    log_unavailable: "Output of commands is not logged. | Read the message; see `commands.log`.",
  },
});
