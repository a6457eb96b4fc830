import type { Clock } from "@coppice/core";
import type { ShellSessionsConfig } from "./shell-sessions-config.js";
import { changeRoutes } from "./files/change-routes.js";
import { listRoutes } from "./files/list-routes.js";
import { readRoutes } from "./files/read-routes.js";
import { portRoutes } from "./ports/port-routes.js";
import { commandRoutes } from "./wire/command-routes.js";
import { processRoutes } from "./wire/process-routes.js";
import type { ShellRoute } from "./wire/route.js";
import { sessionRoutes } from "./wire/session-routes.js";
import { utilityRoutes } from "./wire/utility-routes.js";

export interface ShellRoutesOptions {
  readonly config: ShellSessionsConfig;
  readonly clock: Clock;
}

/** Every route of the interface, for all transports. */
export function shellRoutes({ config, clock }: ShellRoutesOptions): readonly ShellRoute[] {
  return [
    ...utilityRoutes,
    ...commandRoutes(config),
    ...processRoutes(config),
    ...sessionRoutes(config),
    ...readRoutes(config),
    ...changeRoutes,
    ...listRoutes(config),
    ...portRoutes({ config, clock }),
  ];
}
