import type { SandboxEventType } from "@coppice/core";

const PREFIX = "sandbox.lifecycle.";

/** E2B's names of the types. */
export const EVENT_TYPE_NAMES: Readonly<Record<SandboxEventType, string>> = {
  created: `${PREFIX}created`,
  updated: `${PREFIX}updated`,
  paused: `${PREFIX}paused`,
  resumed: `${PREFIX}resumed`,
  snapshotted: `${PREFIX}checkpointed`,
  killed: `${PREFIX}killed`,
};

export const EVENT_TYPES: readonly string[] = Object.values(EVENT_TYPE_NAMES);
