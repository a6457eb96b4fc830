import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { execAlone } from "./command-routes.js";
import { type ShellRoute, success } from "./route.js";

/** Version of the client that the interface is that of: clients warn of another one. */
const VERSION = "0.12.10";

export function utilityRoutes(
  config: Pick<ShellSessionsConfig, "maxOutput" | "commandTimeout">,
): readonly ShellRoute[] {
  const commands: ShellRoute = {
    method: "GET",
    path: "/api/commands",
    async handle({ processes }) {
      const { stdout } = await execAlone(processes, { command: "compgen -c" }, config);
      const names = new Set(stdout.toString().split("\n"));
      names.delete("");
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
