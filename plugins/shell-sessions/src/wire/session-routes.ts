import { randomBytes } from "node:crypto";
import { posix } from "node:path";
import { z } from "zod";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { checkCommand } from "../shell/session.js";
import { ShellError } from "../shell/shell-error.js";
import { execAlone } from "./command-routes.js";
import {
  inputOf,
  sessionIdField,
  SESSIONLESS,
  type ShellRoute,
  success,
  timeout,
  variables,
} from "./route.js";

const createBody = z.object({
  id: sessionIdField.refine((id) => id !== SESSIONLESS, "this id stands for no session").nullish(),
  env: variables.nullish(),
  cwd: z.string().nullish(),
  commandTimeoutMs: timeout.nullish(),
});
const deleteBody = z.object({ sessionId: sessionIdField.min(1) });

/** Sessions by their ids. */
export function sessionRoutes({ workdir }: Pick<ShellSessionsConfig, "workdir">): readonly ShellRoute[] {
  return [
    {
      method: "POST",
      path: "/api/session/create",
      async handle({ body, sessions }) {
        // Clients may send no body here, or one that is no JSON.
        const { id, env, cwd, commandTimeoutMs } = inputOf(createBody, body ?? {});
        const open = { env: env ?? undefined, cwd: cwd ? posix.resolve(workdir, cwd) : undefined };
        checkCommand({ command: "", ...open });
        const session = sessions.create(id || newSessionId(), {
          ...open,
          commandTimeoutMs: commandTimeoutMs ?? undefined,
        });
        return success({ data: { id: session.id }, containerPlacementId: null });
      },
    },
    {
      method: "GET",
      path: "/api/session/list",
      handle: ({ sessions }) => Promise.resolve(success({ data: sessions.ids() })),
    },
    {
      method: "POST",
      path: "/api/session/delete",
      async handle({ body, sessions }) {
        const { sessionId } = inputOf(deleteBody, body);
        if (await sessions.delete(sessionId)) return success({ sessionId });
        throw new ShellError("INTERNAL_ERROR", `Session '${sessionId}' not found`, { sessionId });
      },
    },
  ];
}

/** An id as the original system makes them. */
function newSessionId(): string {
  return `session_${Date.now()}_${randomBytes(6).toString("hex")}`;
}

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
