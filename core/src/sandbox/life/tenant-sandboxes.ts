import type { SandboxId } from "../contract/backend.js";
import { UnknownSandbox } from "../contract/unknown-sandbox.js";
import type { EndedSandbox } from "../ledger/ledger.js";
import { CreatedElsewhere, type Placements } from "./placements.js";
import type { Sandboxes } from "./sandboxes.js";

/**
 * The sandboxes of one tenant; for others' it answers as for unknown ones.
 * @param ownerOf answers for every sandbox that is not completely removed.
 * @param placement chooses the server of a new one.
 */
export function tenantSandboxes(
  all: Sandboxes,
  tenant: string,
  ownerOf: (id: SandboxId) => string | undefined,
  placement?: Placements,
): Sandboxes {
  const owns = (id: SandboxId): boolean => ownerOf(id) === tenant;
  const owned = (id: SandboxId): SandboxId => {
    if (!owns(id)) throw new UnknownSandbox(id);
    return id;
  };
  const endOf = async (id: SandboxId): Promise<EndedSandbox | undefined> => {
    const ended = await all.endOf(id);
    return ended?.owner === tenant ? ended : undefined;
  };
  return {
    defaultTimeoutMs: all.defaultTimeoutMs,
    of: (other, options) => all.of(other, options),
    create: async (request, signal) => {
      const wanted = { ...request, owner: tenant };
      const server = await placement?.used?.(wanted, signal);
      if (server !== undefined) throw new CreatedElsewhere(server);
      return all.create(wanted, signal);
    },
    check: (request) => all.check({ ...request, owner: tenant }),
    checkTimeout: (timeoutMs) => all.checkTimeout(timeoutMs),
    find: (id) => (owns(id) ? all.find(id) : undefined),
    get: (id) => all.get(owned(id)),
    onCreated: (listener) =>
      all.onCreated((sandbox) => {
        if (sandbox.record.owner === tenant) listener(sandbox);
      }),
    remembers: async (id) => owns(id) || (await endOf(id)) !== undefined,
    endOf,
    list: () => all.list().filter(({ record }) => record.owner === tenant),
    kill: async (id, reason) => all.kill(owned(id), reason),
    setTimeout: async (id, timeoutMs) => all.setTimeout(owned(id), timeoutMs),
    extend: async (id, timeoutMs) => all.extend(owned(id), timeoutMs),
    pause: async (id, options) => all.pause(owned(id), options),
    resume: async (id, timeoutMs, options) => all.resume(owned(id), timeoutMs, options),
    use: async (sandbox) => {
      owned(sandbox.record.id);
      return all.use(sandbox);
    },
    setNetworkPolicy: async (id, policy) => all.setNetworkPolicy(owned(id), policy),
    setLimits: async (id, change) => all.setLimits(owned(id), change),
  };
}
