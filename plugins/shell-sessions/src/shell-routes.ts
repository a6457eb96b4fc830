import type { Clock } from "@coppice/core";
import type { Commands } from "@coppice/plugin-commands";
import type { DirectoryWatches } from "@coppice/plugin-files";
import type { CodeInterpreter } from "@coppice/plugin-jupyter";
import type { ShellSessionsConfig } from "./shell-sessions-config.js";
import { interpreterRoutes } from "./code/interpreter-routes.js";
import { changeRoutes } from "./files/change-routes.js";
import { listRoutes } from "./files/list-routes.js";
import { readRoutes } from "./files/read-routes.js";
import { gitRoutes } from "./git/git-routes.js";
import { portRoutes } from "./ports/port-routes.js";
import { watchRoutes } from "./watch/watch-routes.js";
import { commandRoutes } from "./wire/command-routes.js";
import { processRoutes } from "./wire/process-routes.js";
import type { ShellRoute } from "./wire/route.js";
import { sessionRoutes } from "./wire/session-routes.js";
import { utilityRoutes } from "./wire/utility-routes.js";

export interface ShellRoutesOptions {
  readonly config: ShellSessionsConfig;
  readonly clock: Clock;
  readonly commands: Commands;
  readonly watches: DirectoryWatches | undefined;
  readonly interpreter: CodeInterpreter | undefined;
}

/** Every route of the interface, for all transports. */
export function shellRoutes(options: ShellRoutesOptions): readonly ShellRoute[] {
  const { config } = options;
  return [
    ...utilityRoutes(config),
    ...commandRoutes(config),
    ...processRoutes(config),
    ...sessionRoutes(config),
    ...readRoutes(config),
    ...changeRoutes,
    ...listRoutes(config),
    ...portRoutes(options),
    ...interpreterRoutes(options),
    ...gitRoutes(options),
    ...watchRoutes(options),
  ];
}
