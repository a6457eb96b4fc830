import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons(
  {
    canceled: { watch_closed: "The server closed a watch. | Watch again." },
    invalid_argument: {
      encoding_not_acceptable: "No wanted encoding is served. | Accept `gzip` or `identity`.",
    },
    not_found: { watcher_not_found: "There is no such watch. | Watch again." },
    failed_precondition: { file_changed: "The file is not the one that was asked for. | Read it anew." },
    out_of_range: { range_not_satisfiable: "No byte of the range is in the file. | See `Content-Range`." },
    unimplemented: { watching_unsupported: "The backend cannot watch directories. | List them." },
    internal: { watch_failed: "A watch broke off. | Watch again." },
    unauthenticated: {
      download_link_invalid: "A download link is wrong. | Make a new one.",
      download_link_expired: "A download link has expired. | Make a new one.",
    },
  },
  { encoding_not_acceptable: 406, file_changed: 412, range_not_satisfiable: 416 },
);
