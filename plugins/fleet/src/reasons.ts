import { declareReasons, SandboxError } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons({
  unavailable: {
    fleet_fenced: "This server has lost contact with its fleet. | Try again; look at its log and at etcd.",
    fleet_unavailable: "The fleet cannot do it now. | Try again; look at etcd and at the other servers.",
  },
  unauthenticated: {
    fleet_peer_unknown:
      "Only other servers of the fleet are served here. | Compare `fleet.secret` on all of them.",
  },
});

export function unavailable(text: string, cause?: unknown): SandboxError {
  return new SandboxError(REASONS.fleet_unavailable, text, { cause });
}
