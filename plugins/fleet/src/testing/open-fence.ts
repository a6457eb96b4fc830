import { Fence } from "../membership/fence.js";

/** Keeps the fences of all servers in this process open for good, which a test of a fleet has to notice. */
export function openFences(): void {
  Object.defineProperties(Fence.prototype, {
    isOpen: { get: () => true },
    leftMs: { get: () => 3_600_000 },
  });
}
