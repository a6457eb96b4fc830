import type { Clock } from "../../kernel/clock.js";
import { SandboxError } from "../../kernel/errors.js";
import type { Tenants } from "../../bounds/tenants.js";
import { abortAfter } from "../../kernel/time.js";
import type { Logger } from "../../observe/logger.js";
import type { EventRelay } from "./event-relay.js";
import type { Ledger } from "./ledger.js";
import type { SharedRecords } from "../model/shared.js";
import type { SandboxMetrics } from "../model/sandbox-metrics.js";
import type { SandboxesConfig } from "../model/sandboxes-config.js";
import type { BackendRegistry } from "../backends/choose-backends.js";
import type { Teardown } from "../backends/teardown.js";

/** Services that the parts of the sandbox domain share. */
export interface SandboxServices {
  readonly settings: SandboxesConfig;
  readonly backends: BackendRegistry;
  readonly ledger: Ledger;
  readonly shared: SharedRecords;
  readonly teardown: Teardown;
  readonly metrics: SandboxMetrics;
  readonly events: EventRelay;
  readonly tenants: Tenants;
  readonly clock: Clock;
  readonly log: Logger;
}

/**
 * Aborts a controller after `sandboxes.createTimeout`, unless what this returns is disposed of first.
 * @param what did not happen then, for the message.
 */
export function limitCreation(
  aborting: AbortController,
  { clock, settings }: Pick<SandboxServices, "clock" | "settings">,
  what: string,
): Disposable {
  const timeoutMs = settings.createTimeout;
  const overdue = (): Error => new SandboxError("backend_timeout", `${what} within ${timeoutMs} ms`);
  return abortAfter(aborting, { clock, timeoutMs, overdue });
}
