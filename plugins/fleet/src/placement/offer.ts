import { availableParallelism, loadavg, totalmem } from "node:os";
import { type CreateSandbox, messageOf, SandboxError, type Sandboxes } from "@coppice/core";
import { z } from "zod";

/** What a server says to a new sandbox: how much it has to do, or why it cannot have it. */
export type Offer = z.infer<typeof offer>;

export const offer = z.union([
  z.object({
    /** Memory that its sandboxes may use, as part of what the machine has, and a little of its processors' load. */
    load: z.number(),
    /** True where its template is another server's: it is asked to fetch it before it gets the request. */
    fetches: z.boolean().optional(),
  }),
  z.object({
    refusal: z.string(),
    /** The reason of its error, where it has one. */
    reason: z.string().optional(),
  }),
]);

/** What a server's sandboxes share. */
interface Machine {
  readonly memoryMiB: number;
  readonly processors: number;
  /** Processes that ran or wanted to, over the last minute. */
  processes(): number;
}

export const MACHINE: Machine = {
  memoryMiB: Math.round(totalmem() / 2 ** 20),
  processors: availableParallelism(),
  processes: () => loadavg()[0] ?? 0,
};
/** Counted for a sandbox that has less, or no limit. */
const LEAST_MEMORY_MIB = 64;
const PROCESSORS_WEIGHT = 0.1;
/** Counted for a template that has to be fetched: a server that has it makes sandboxes until it has much more to do. */
const FETCH_LOAD = 0.2;

/** Tells the parts of a request that decide whether a server can have it; without its variables and secrets. */
export function askedOf(
  request: CreateSandbox,
): Omit<CreateSandbox, "environment" | "metadata" | "idempotency"> {
  const { environment: _, metadata: _m, idempotency: _i, ...asked } = request;
  return asked;
}

export function ownOffer(
  request: CreateSandbox,
  sandboxes: Pick<Sandboxes, "check" | "list">,
  machine = MACHINE,
): Offer {
  let remote: ReturnType<Sandboxes["check"]>;
  try {
    remote = sandboxes.check(request);
  } catch (error) {
    return { refusal: messageOf(error), ...(error instanceof SandboxError && { reason: error.reason }) };
  }
  const memories = sandboxes.list().map(({ record }) => record.limits.memoryMiB ?? 0);
  const usedMiB = memories.reduce((sum, memory) => sum + Math.max(memory, LEAST_MEMORY_MIB), 0);
  const { memoryMiB, processors } = machine;
  const load = usedMiB / memoryMiB + (PROCESSORS_WEIGHT * machine.processes()) / processors;
  if (remote === undefined) return { load };
  return { load: remote.isHere ? load : load + FETCH_LOAD, fetches: true };
}
