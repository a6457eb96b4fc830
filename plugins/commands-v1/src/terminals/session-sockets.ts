import { SandboxError, type Sandboxes, type WebSocketRoute } from "@coppice/core";
import type { Commands } from "@coppice/plugin-commands";
import type { CommandsV1Config } from "../commands-v1-config.js";
import type { LogFollowers } from "../logs/log-followers.js";
import type { NamedSandboxes } from "../sandboxes/named-sandboxes.js";
import { PING } from "./frames.js";
import { serveTerminal } from "./serve-terminal.js";
import type { Terminals } from "./terminals.js";

export interface SessionSocketsOptions {
  readonly named: NamedSandboxes;
  readonly sandboxes: Sandboxes;
  readonly commands: Commands;
  readonly terminals: Terminals;
  readonly followers: LogFollowers;
  readonly config: CommandsV1Config;
}

const SESSION_PATH = /\/sandboxes\/([^/]+)\/sessions\/([^/]+)$/;
const MAX_SESSION_NAME = 128;

/** WebSockets of terminals. A client that connects again gets the terminal that it left, and its last output. */
export function sessionSockets(options: SessionSocketsOptions): WebSocketRoute {
  const { named, sandboxes, commands, terminals, followers, config } = options;
  return {
    maxMessageBytes: config.maxMessage,
    pingIntervalMs: config.pingInterval,
    pingMessage: PING,
    room: config,
    sandboxOf: (request) => named.get(request, SESSION_PATH.exec(request.url.pathname)?.[1]),
    async open({ request, sandbox, closed }) {
      onAbort(closed, await sandboxes.use(sandbox));
      const session = sessionName(SESSION_PATH.exec(request.url.pathname)?.[2]);
      const { workdir: cwd } = named.describe(sandbox);
      const terminal = await terminals.open(sandbox, { session, cwd });
      const attached = terminals.attach(terminal);
      onAbort(closed, () => attached[Symbol.dispose]());
      const logs = commands.log(sandbox.record.id);
      const { outputBytes } = await logs.find({ id: terminal.id });
      const from = Math.max(outputBytes - config.scrollback, 0);
      return (socket) =>
        void serveTerminal(socket, { sandbox, terminal, logs, followers, from, log: request.log });
    },
  };
}

function onAbort(signal: AbortSignal, act: () => void): void {
  if (signal.aborted) act();
  else signal.addEventListener("abort", act, { once: true });
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
