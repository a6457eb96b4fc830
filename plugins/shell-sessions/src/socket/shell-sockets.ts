import type { Clock, WebSocketRoute } from "@coppice/core";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import type { Dispatch } from "../wire/dispatch.js";
import type { ShellRoute } from "../wire/route.js";
import { routeMatcher } from "./route-match.js";
import type { ShellAccess } from "../wire/shell-access.js";
import { SocketClient } from "./socket-client.js";

export interface ShellSocketsOptions {
  readonly routes: readonly ShellRoute[];
  readonly dispatch: Dispatch;
  readonly access: ShellAccess;
  readonly clock: Clock;
  readonly config: ShellSessionsConfig;
}

/** WebSockets that carry requests to all routes. */
export function shellSockets({ routes, ...options }: ShellSocketsOptions): WebSocketRoute {
  const { config } = options;
  const find = routeMatcher(routes);
  return {
    maxMessageBytes: config.maxBody,
    pingIntervalMs: config.heartbeat,
    room: config,
    open:
      ({ request: { log }, message, sandbox }) =>
      (socket) =>
        void new SocketClient(socket, { message, sandbox, find, log, ...options }),
  };
}
