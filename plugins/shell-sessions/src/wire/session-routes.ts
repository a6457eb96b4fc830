import { randomBytes } from "node:crypto";
import { posix } from "node:path";
import { z } from "zod";
import { checkCommand } from "../shell/session.js";
import { ShellError } from "../shell/shell-error.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { timeout, variables } from "./command-body.js";
import { inputOf, type ShellRoute, success } from "./route.js";
import { SESSIONLESS, sessionIdField } from "./session-id.js";

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
