import type { IncomingHttpHeaders } from "node:http";
import { type Clock, SandboxError, type Sandboxes, SandboxSockets, type UpgradeHandler } from "@coppice/core";
import type { Commands } from "@coppice/plugin-commands";
import { WebSocketServer } from "ws";
import type { CommandsV1Config } from "../commands-v1-config.js";
import type { Growth } from "../logs/growth.js";
import type { NamedSandboxes } from "../sandboxes/named-sandboxes.js";
import { serveTerminal } from "./serve-terminal.js";
import type { Terminals } from "./terminals.js";

export interface SessionUpgradeOptions {
  readonly named: NamedSandboxes;
  readonly sandboxes: Sandboxes;
  readonly commands: Commands;
  readonly terminals: Terminals;
  readonly growth: Growth;
  readonly clock: Clock;
  readonly config: CommandsV1Config;
}

const MAX_SESSION_NAME = 128;
/** 16 bytes in base64: RFC 6455, 4.1. */
const WEBSOCKET_KEY = /^[+/0-9A-Za-z]{22}==$/;

/** WebSockets of terminals. A client that connects again gets the terminal that it left, and its last output. */
export function sessionUpgrade(options: SessionUpgradeOptions): {
  readonly accept: UpgradeHandler;
  readonly close: () => void;
} {
  const { named, sandboxes, commands, terminals, growth, clock, config } = options;
  const { maxMessage, pingInterval, scrollback } = config;
  const sockets = new SandboxSockets(config);
  const server = new WebSocketServer({ noServer: true, maxPayload: maxMessage, perMessageDeflate: false });

  const accept: UpgradeHandler = async (request, { message, socket, head }) => {
    sockets.checkOrigin(message.headers);
    checkHandshake(message.headers);
    const [, id, session] = /\/sandboxes\/([^/]+)\/sessions\/([^/]+)$/.exec(request.url.pathname) ?? [];
    const sandbox = named.get(request, id);
    sockets.add(socket, sandbox.record.id);
    const release = await sandboxes.use(sandbox);
    socket.once("close", release);
    if (socket.destroyed) release();
    const { workdir: cwd } = named.describe(sandbox);
    const terminal = await terminals.open(sandbox, { session: sessionName(session), cwd });
    const attached = terminals.attach(terminal);
    const leave = (): void => attached[Symbol.dispose]();
    socket.once("close", leave);
    if (socket.destroyed) {
      socket.off("close", leave);
      leave();
      return;
    }
    const logs = commands.log(sandbox.record.id);
    const { outputBytes } = await logs.find({ id: terminal.id });
    server.handleUpgrade(message, socket, head, (webSocket) => {
      const cut = (): void => webSocket.terminate();
      sandbox.ended.addEventListener("abort", cut, { once: true });
      webSocket.once("close", () => sandbox.ended.removeEventListener("abort", cut));
      if (sandbox.ended.aborted) cut();
      void serveTerminal(webSocket, {
        terminal,
        logs,
        growth,
        from: Math.max(outputBytes - scrollback, 0),
        clock,
        pingIntervalMs: pingInterval,
        log: request.log,
      });
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

/**
 * What the WebSocket server refuses, before a shell is started for it.
 * @throws SandboxError invalid_argument
 */
function checkHandshake(headers: IncomingHttpHeaders): void {
  const isKnown = ["8", "13"].includes(headers["sec-websocket-version"] ?? "");
  if (isKnown && WEBSOCKET_KEY.test(headers["sec-websocket-key"] ?? "")) return;
  throw new SandboxError("request_invalid", "Sec-WebSocket-Key or Sec-WebSocket-Version is invalid");
}

/** @throws SandboxError invalid_argument for a name that is broken, or too long. */
function sessionName(encoded = ""): string {
  try {
    const name = decodeURIComponent(encoded);
    if (name.length <= MAX_SESSION_NAME && !/\p{Cc}/u.test(name)) return name;
  } catch {
    // Refused below.
  }
  throw new SandboxError("session_id_invalid", `a session's name has up to ${MAX_SESSION_NAME} characters`);
}
