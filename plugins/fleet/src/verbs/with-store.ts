import { parseArgs } from "node:util";
import { SandboxError, type VerbContext } from "@coppice/core";
import type { FleetConfig } from "../fleet-config.js";
import type { FleetStore } from "../store/fleet-store.js";
import { openStore } from "../store/open-store.js";

/** Opens the fleet's store for a verb, whether or not a server runs here. */
export async function withStore<T>(
  { config, clock }: Pick<VerbContext<FleetConfig>, "config" | "clock">,
  use: (store: FleetStore) => Promise<T>,
): Promise<T> {
  const store = openStore(config, clock);
  try {
    return await use(store);
  } finally {
    await store.close();
  }
}

/** The one server that a command line names. @throws SandboxError invalid_argument */
export function serverIn(args: readonly string[]): string {
  const { positionals } = parseArgs({ args: [...args], allowPositionals: true });
  const [name, ...others] = positionals;
  if (name === undefined || others.length > 0)
    throw new SandboxError(
      "request_invalid",
      "expected the name of one server; coppice fleet status has them",
    );
  return name;
}
