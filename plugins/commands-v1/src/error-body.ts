import type { ErrorBody } from "@coppice/core";

/** The error body of the contract: `code` is a word, `forbidden` for a missing scope. */
export const errorBody: ErrorBody = ({ status, reason, message }, { id }) => ({
  code: status === 403 ? "forbidden" : reason,
  message,
  request_id: id,
});
