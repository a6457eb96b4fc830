import type { SandboxEventType } from "@coppice/core";

const PREFIX = "sandbox.lifecycle.";

const NAMES: Readonly<Record<SandboxEventType, string>> = {
  created: `${PREFIX}created`,
  updated: `${PREFIX}updated`,
  paused: `${PREFIX}paused`,
  resumed: `${PREFIX}resumed`,
  snapshotted: `${PREFIX}checkpointed`,
  killed: `${PREFIX}killed`,
};

export const EVENT_TYPES: readonly string[] = Object.values(NAMES);

export function eventTypeName(type: SandboxEventType): string {
  return NAMES[type];
}
