import { type Clock, SandboxError, SandboxSockets, type UpgradeHandler } from "@coppice/core";
import { type WebSocket, WebSocketServer } from "ws";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import type { Dispatch } from "../wire/dispatch.js";
import type { ShellRoute } from "../wire/route.js";
import { routeMatcher } from "./route-match.js";
import type { ShellAccess } from "../wire/shell-access.js";
import { SocketClient } from "./socket-client.js";

export interface SocketUpgradeOptions {
  readonly routes: readonly ShellRoute[];
  readonly dispatch: Dispatch;
  readonly access: ShellAccess;
  readonly clock: Clock;
  readonly config: ShellSessionsConfig;
}

/** WebSockets that carry requests to all routes. */
export function socketUpgrade({ routes, ...options }: SocketUpgradeOptions): {
  readonly accept: UpgradeHandler;
  readonly close: () => void;
} {
  const { clock, config } = options;
  const find = routeMatcher(routes);
  const sockets = new SandboxSockets(config);
  const server = new WebSocketServer({
    noServer: true,
    clientTracking: false,
    maxPayload: config.maxBody,
    perMessageDeflate: false,
    autoPong: false,
  });

  const accept: UpgradeHandler = ({ target, log }, { message, socket, head }) => {
    if (target === undefined) throw new SandboxError("sandbox_not_found", "the request names no sandbox");
    const { sandbox } = target;
    sockets.checkOrigin(message.headers);
    sockets.add(socket, sandbox.record.id);
    server.handleUpgrade(message, socket, head, (webSocket) => {
      // Broken frames and lost connections: the socket closes, and that is handled.
      webSocket.on("error", () => undefined);
      // Pongs for a client that takes nothing would pile up.
      webSocket.on("ping", (data) => {
        if (webSocket.bufferedAmount < MAX_UNTAKEN_BYTES) webSocket.pong(data);
      });
      const cut = (): void => webSocket.terminate();
      sandbox.ended.addEventListener("abort", cut, { once: true });
      webSocket.once("close", () => sandbox.ended.removeEventListener("abort", cut));
      if (sandbox.ended.aborted) cut();
      pingUntilClosed(webSocket, { clock, intervalMs: config.heartbeat });
      new SocketClient(webSocket, { sandbox, find, log, ...options });
    });
  };
  return {
    accept,
    close: () => {
      sockets.destroyAll();
      server.close();
    },
  };
}

const MAX_UNTAKEN_BYTES = 64 * 1024;

/** Cuts a connection whose client says nothing for a whole interval: no message, and no pong. */
function pingUntilClosed(
  socket: WebSocket,
  { clock, intervalMs }: { readonly clock: Clock; readonly intervalMs: number },
): void {
  let isAlive = true;
  for (const event of ["message", "pong"]) {
    socket.on(event, () => {
      isAlive = true;
    });
  }
  let cancel = (): void => undefined;
  const next = (): void => {
    cancel = clock.after(intervalMs, () => {
      // The pong of a merely slow client waits behind its unread messages.
      if (!isAlive && socket.bufferedAmount === 0) return socket.terminate();
      isAlive = false;
      socket.ping();
      return next();
    });
  };
  next();
  socket.once("close", () => cancel());
}
