import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons({
  invalid_argument: {
    host_setting_invalid: "A backend's setting does not fit this host. | Correct the configuration.",
  },
  resource_exhausted: {
    ids_exhausted: "No user or project id is free. | See `linux-namespaces.ids`.",
  },
  failed_precondition: {
    snapshot_too_deep: "The sandbox has too many snapshots below it. | Make one of the template.",
  },
  unimplemented: {
    freezer_missing: "The host cannot freeze processes. | `coppice doctor`.",
  },
  unavailable: {
    launcher_unavailable: "The launcher of linux-namespaces has ended. | Read the log.",
    directory_in_use: "Another server uses the directory. | Give each server its own.",
    egress_range_in_use: "Another program uses the `egressRange`. | Choose another range.",
  },
});
