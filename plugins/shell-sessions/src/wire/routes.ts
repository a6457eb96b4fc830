import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { commandRoutes } from "./command-routes.js";
import type { ShellRoute } from "./route.js";
import { sessionRoutes } from "./session-routes.js";
import { utilityRoutes } from "./utility-routes.js";

export interface ShellRoutesOptions {
  readonly config: ShellSessionsConfig;
}

/** Every route of the interface, for all transports. */
export function shellRoutes({ config }: ShellRoutesOptions): readonly ShellRoute[] {
  return [...utilityRoutes, ...commandRoutes(config), ...sessionRoutes(config)];
}
