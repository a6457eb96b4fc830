import { type InspectOptions, inspect } from "./boot.js";
import { BootError } from "../kernel/errors.js";
import type { Backends } from "../sandbox/contract/backend.js";

/**
 * Sets a configuration up without starting it, and passes its backends to `use`. Meanwhile no server can start on its
 * data directory.
 * @throws BootError when it cannot be set up or a server runs on that directory, or what `use` throws.
 */
export async function whileStopped<T>(
  options: InspectOptions,
  use: (backends: Backends) => Promise<T>,
): Promise<T> {
  const [used] = await inspect(options, async ({ backends, ledger, problems }) => {
    if (problems.length > 0) throw new BootError(problems);
    await ledger.open();
    try {
      // Thrown only after the undoing, which would make a BootError of it.
      return await Promise.allSettled([use(backends)]);
    } finally {
      await ledger.close();
    }
  });
  if (used.status === "rejected") throw used.reason;
  return used.value;
}
