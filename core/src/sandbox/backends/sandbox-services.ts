import type { Clock } from "../../kernel/clock.js";
import type { Logger } from "../../observe/logger.js";
import type { EventRelay } from "../ledger/event-relay.js";
import type { Ledger } from "../ledger/ledger.js";
import type { SandboxMetrics } from "../model/sandbox-metrics.js";
import type { SandboxesConfig } from "../model/sandboxes-config.js";
import type { BackendRegistry } from "./backend-registry.js";
import type { Teardown } from "./teardown.js";

/** Services that the parts of the sandbox domain share. */
export interface SandboxServices {
  readonly settings: SandboxesConfig;
  readonly backends: BackendRegistry;
  readonly ledger: Ledger;
  readonly teardown: Teardown;
  readonly metrics: SandboxMetrics;
  readonly events: EventRelay;
  readonly clock: Clock;
  readonly log: Logger;
}
