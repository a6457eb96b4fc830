import { type HeldMemory, MemoryRoom } from "@coppice/core";

/** Room that no test fills. */
export function ampleRoom(): HeldMemory {
  return new MemoryRoom(2 ** 40).open({ tenant: "", sandbox: "", giveUp: () => undefined });
}
