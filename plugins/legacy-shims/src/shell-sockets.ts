import {
  type Clock,
  parseSandboxId,
  SandboxError,
  type Sandboxes,
  SandboxSockets,
  sandboxesOf,
  type UpgradeHandler,
} from "@coppice/core";
import type { TerminalSize } from "@coppice/core/backend";
import type { Commands } from "@coppice/plugin-commands";
import { type WebSocket, WebSocketServer } from "ws";
import { MAX_TERMINAL } from "./client-frame.js";
import type { LegacyShimsConfig } from "./legacy-shims-config.js";
import { serveShell } from "./shell-socket.js";

export interface ShellSocketsOptions {
  readonly sandboxes: Sandboxes;
  readonly commands: Commands;
  readonly clock: Clock;
  readonly config: LegacyShimsConfig;
}

const TERMINAL: TerminalSize = { columns: 80, rows: 24 };
const TERMINAL_TYPE = "xterm-256color";

/** WebSockets with a new shell for each. A shell ends with its socket, because there is no way to reconnect. */
export class ShellSockets {
  readonly #options: ShellSocketsOptions;
  readonly #server: WebSocketServer;
  readonly #sockets: SandboxSockets;

  constructor(options: ShellSocketsOptions) {
    this.#options = options;
    this.#sockets = new SandboxSockets(options.config);
    this.#server = new WebSocketServer({
      noServer: true,
      clientTracking: true,
      maxPayload: options.config.maxMessage,
      perMessageDeflate: false,
    });
  }

  /** @throws SandboxError not_found, invalid_argument, resource_exhausted, permission_denied; as `Commands.start`. */
  readonly accept: UpgradeHandler = async (request, { message, socket, head }) => {
    const { sandboxes, commands, clock, config } = this.#options;
    const { pathname, searchParams: query } = request.url;
    this.#sockets.checkOrigin(message.headers);
    const sandbox = sandboxesOf(request, sandboxes).get(parseSandboxId(pathname.split("/")[2]));
    const dialect = dialectIn(query, config.dialect);
    const terminal = dialect === "pty" ? sizeIn(query) : undefined;
    this.#sockets.add(socket, sandbox.record.id);
    const command = await commands.start(sandbox, {
      path: config.shell,
      user: query.get("user") ?? undefined,
      ...(terminal && { terminal, environment: { TERM: TERMINAL_TYPE } }),
    });
    // From here on the shell ends with the socket, also when the handshake fails.
    const left = new AbortController();
    const leave = (): void => {
      left.abort();
      command.kill("SIGKILL", "group").catch(() => undefined);
    };
    const output = command.subscribe(left.signal);
    socket.once("close", leave);
    if (socket.destroyed) leave();
    this.#server.handleUpgrade(message, socket, head, (webSocket: WebSocket) => {
      void serveShell(webSocket, { command, output, dialect, clock, config, log: request.log });
      const cut = (): void => webSocket.terminate();
      sandbox.ended.addEventListener("abort", cut, { once: true });
      webSocket.once("close", () => sandbox.ended.removeEventListener("abort", cut));
      if (sandbox.ended.aborted) cut();
    });
  };

  close(): void {
    for (const client of this.#server.clients) client.terminate();
    this.#sockets.destroyAll();
    this.#server.close();
  }
}

function dialectIn(
  query: URLSearchParams,
  usual: LegacyShimsConfig["dialect"],
): LegacyShimsConfig["dialect"] {
  const dialect = query.get("dialect") ?? usual;
  if (dialect === "json" || dialect === "pty") return dialect;
  throw new SandboxError("request_invalid", "the dialect is json or pty");
}

function sizeIn(query: URLSearchParams): TerminalSize {
  const cells = (name: string, usual: number): number => {
    const number = Number(query.get(name) ?? usual);
    if (Number.isInteger(number) && number >= 1 && number <= MAX_TERMINAL) return number;
    throw new SandboxError("terminal_size_invalid", `${name} is a number from 1 to ${MAX_TERMINAL}`);
  };
  return { columns: cells("cols", TERMINAL.columns), rows: cells("rows", TERMINAL.rows) };
}
