import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons({
  failed_precondition: {
    internet_not_closable: "The backend cannot close the internet to a sandbox. | Use another backend.",
  },
});
