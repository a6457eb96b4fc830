import { availableParallelism, loadavg, totalmem } from "node:os";
import { type CreateSandbox, messageOf, type Sandboxes } from "@coppice/core";
import { z } from "zod";

/** What a server says to a new sandbox: how much it has to do, or why it cannot have it. */
export type Offer = z.infer<typeof offer>;

export const offer = z.union([
  z.object({
    /** Memory that its sandboxes may use, as part of what the machine has, and a little of its processors' load. */
    load: z.number(),
  }),
  z.object({ refusal: z.string() }),
]);

const MEBIBYTE = 2 ** 20;
const MEMORY_BYTES = totalmem();
/** Counted for a sandbox that has less, or no limit. */
const LEAST_MEMORY_MIB = 64;
const PROCESSORS_WEIGHT = 0.1;

/** Tells the parts of a request that decide whether a server can have it; without its variables and secrets. */
export function askedOf(
  request: CreateSandbox,
): Omit<CreateSandbox, "environment" | "metadata" | "idempotency"> {
  const { environment: _, metadata: _m, idempotency: _i, ...asked } = request;
  return asked;
}

/** The offer of this server for a request of a tenant. */
export function ownOffer(request: CreateSandbox, sandboxes: Pick<Sandboxes, "check" | "list">): Offer {
  try {
    sandboxes.check(request);
  } catch (error) {
    return { refusal: messageOf(error) };
  }
  const memories = sandboxes.list().map(({ record }) => record.limits.memoryMiB ?? 0);
  const usedMiB = memories.reduce((sum, memory) => sum + Math.max(memory, LEAST_MEMORY_MIB), 0);
  const [processes = 0] = loadavg();
  return {
    load: (usedMiB * MEBIBYTE) / MEMORY_BYTES + (PROCESSORS_WEIGHT * processes) / availableParallelism(),
  };
}
