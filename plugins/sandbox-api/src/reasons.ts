import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons({
  invalid_argument: {
    secure_required: "A sandbox is neither public nor `secure`. | Create it with `secure: true`.",
  },
  failed_precondition: {
    volume_owner_unsupported: "The backend cannot change owners and modes. | Leave them out.",
  },
});
