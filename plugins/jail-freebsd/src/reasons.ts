import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons({
  already_exists: {
    dataset_exists: "A ZFS dataset has this name. | Read the log.",
    address_leased: "Another network leases this address. | Read the log.",
  },
  permission_denied: {
    dataset_not_owned: "A ZFS dataset is not Coppice's. | See `jail-freebsd.dataset`.",
  },
});
