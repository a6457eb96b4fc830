import {
  parseSandboxId,
  SandboxError,
  type Sandboxes,
  sandboxesOf,
  type WebSocketRoute,
} from "@coppice/core";
import type { TerminalSize } from "@coppice/core/backend";
import type { Commands } from "@coppice/plugin-commands";
import { MAX_TERMINAL } from "./client-frame.js";
import type { LegacyShimsConfig } from "./legacy-shims-config.js";
import { serveShell } from "./shell-socket.js";

export interface ShellSocketsOptions {
  readonly sandboxes: Sandboxes;
  readonly commands: Commands;
  readonly config: LegacyShimsConfig;
}

const TERMINAL: TerminalSize = { columns: 80, rows: 24 };
const TERMINAL_TYPE = "xterm-256color";

/** WebSockets with a new shell for each. A shell ends with its socket, because there is no way to reconnect. */
export function shellSockets({ sandboxes, commands, config }: ShellSocketsOptions): WebSocketRoute {
  return {
    maxMessageBytes: config.maxMessage,
    pingIntervalMs: config.pingInterval,
    room: config,
    sandboxOf: (request) =>
      sandboxesOf(request, sandboxes).get(parseSandboxId(request.url.pathname.split("/")[2])),
    async open({ request, sandbox, closed }) {
      const query = request.url.searchParams;
      const dialect = dialectIn(query, config.dialect);
      const terminal = dialect === "pty" ? sizeIn(query) : undefined;
      const command = await commands.start(sandbox, {
        path: config.shell,
        user: query.get("user") ?? undefined,
        ...(terminal && { terminal, environment: { TERM: TERMINAL_TYPE } }),
      });
      // From here on the shell ends with the socket, also when the handshake fails.
      const kill = (): void => void command.kill("SIGKILL", "group").catch(() => undefined);
      const output = command.subscribe(closed);
      closed.addEventListener("abort", kill, { once: true });
      if (closed.aborted) kill();
      return (socket) =>
        void serveShell(socket, { sandbox, command, output, dialect, config, log: request.log });
    },
  };
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
