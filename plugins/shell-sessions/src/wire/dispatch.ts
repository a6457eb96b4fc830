import type { Clock, LiveSandbox, Spool } from "@coppice/core";
import type { Commands } from "@coppice/plugin-commands";
import { SandboxProcesses } from "../processes/sandbox-processes.js";
import type { ShellSessions } from "../shell/shell-sessions.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import type { ShellAnswer, ShellRequest, ShellRoute } from "./route.js";

/** Passes a request of a transport to its route. @throws as the route */
export type Dispatch = (
  route: ShellRoute,
  request: Omit<ShellRequest, "sessions" | "processes">,
) => Promise<ShellAnswer>;

export interface DispatcherOptions {
  readonly shells: ShellSessions;
  readonly commands: Commands;
  readonly clock: Clock;
  readonly config: ShellSessionsConfig;
  readonly spool: Spool;
}

export function dispatcher({ shells, ...options }: DispatcherOptions): Dispatch {
  const processes = new WeakMap<LiveSandbox, SandboxProcesses>();
  return async (route, request) => {
    const { sandbox } = request;
    const sessions = await shells.of(sandbox);
    const known = processes.get(sandbox) ?? new SandboxProcesses({ sandbox, ...options });
    processes.set(sandbox, known);
    return await route.handle({ ...request, sessions, processes: known });
  };
}
