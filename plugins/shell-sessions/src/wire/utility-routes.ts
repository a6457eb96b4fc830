import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { execAlone } from "./command-routes.js";
import { type ShellRoute, success } from "./route.js";

/** Version of the client that the interface is that of: clients warn of another one. */
const VERSION = "0.12.10";
/** More names than this would take the event loop too long. */
const MAX_NAMES_BYTES = 128 * 1024;

export function utilityRoutes(config: Pick<ShellSessionsConfig, "commandTimeout">): readonly ShellRoute[] {
  const commands: ShellRoute = {
    method: "GET",
    path: "/api/commands",
    async handle({ processes }) {
      const options = { ...config, maxOutput: MAX_NAMES_BYTES };
      await using result = await execAlone(processes, { command: "compgen -c" }, options);
      const text = String(await result.stdout.join());
      // The last line is empty, or cut.
      const names = new Set(text.split("\n").slice(0, -1));
      return success({ availableCommands: [...names].toSorted(), count: names.size });
    },
  };
  return [...statusRoutes, commands];
}

const statusRoutes: readonly ShellRoute[] = [
  {
    method: "GET",
    path: "/",
    handle: () => Promise.resolve({ text: "The shell sessions of a sandbox: see /api/version\n" }),
  },
  {
    method: "GET",
    path: "/api/ping",
    // Clients read `message`.
    handle: () => Promise.resolve(success({ status: "healthy", message: "healthy" })),
  },
  {
    method: "GET",
    path: "/api/version",
    handle: () => Promise.resolve(success({ version: VERSION })),
  },
];
