import type { SandboxEventType } from "@coppice/core";

const PREFIX = "sandbox.lifecycle.";

/** E2B's names of the types of events. */
const NAMES: Readonly<Record<SandboxEventType, string>> = {
  created: `${PREFIX}created`,
  updated: `${PREFIX}updated`,
  paused: `${PREFIX}paused`,
  resumed: `${PREFIX}resumed`,
  snapshotted: `${PREFIX}checkpointed`,
  killed: `${PREFIX}killed`,
};

/** Every type, as clients name it. */
export const EVENT_TYPES: readonly string[] = Object.values(NAMES);

export function eventTypeName(type: SandboxEventType): string {
  return NAMES[type];
}
