import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import type { Duplex } from "node:stream";
import { fileURLToPath } from "node:url";
import { SandboxError, messageOf } from "@coppice/core";
import { AgentConnection, type AgentConnectionOptions } from "./agent-connection.js";
import { agentBinary } from "./built/agent-binary.js";

interface HostAgentOptions extends Omit<AgentConnectionOptions, "afterClose"> {
  /** The program; `agentBinary()` when absent. `"node"`: a Node process instead, without terminals and files. */
  readonly binary?: string | undefined;
  /** Directory of this host that is `/` for file operations; the host's own root when absent. */
  readonly root?: string | undefined;
}

const NODE_AGENT = fileURLToPath(new URL("./node-agent.js", import.meta.url));
const CONNECTION_FD = 3;
const EXIT_TIMEOUT_MS = 5_000;

/**
 * Starts a process on this host that starts all others, because a fork costs as much as the memory of its process. It
 * ends, with everything it started, when the connection is closed or this process ends.
 * @throws SandboxError unavailable
 */
export async function startHostAgent(options: HostAgentOptions = {}): Promise<AgentConnection> {
  const binary = options.binary ?? agentBinary() ?? "node";
  const [program, words] =
    binary === "node"
      ? [process.execPath, [NODE_AGENT, String(CONNECTION_FD)]]
      : [
          binary,
          [...(options.root === undefined ? [] : ["--root", options.root]), "pair", String(CONNECTION_FD)],
        ];
  const child = spawn(program, words, {
    stdio: ["ignore", "ignore", "inherit", "pipe"],
    // A separate session: a terminal's Ctrl-C is for the server, which then closes the agent.
    detached: true,
    cwd: "/",
    env: {},
  });
  const ended = new Promise<void>((resolve) => {
    child.once("exit", () => resolve());
    child.once("error", () => resolve());
  });
  try {
    await once(child, "spawn");
  } catch (error) {
    throw new SandboxError("agent_unavailable", `cannot start the agent: ${messageOf(error)}`, {
      cause: error,
    });
  }
  child.on("error", () => undefined);
  child.unref();
  return AgentConnection.open(child.stdio[CONNECTION_FD] as Duplex, {
    ...options,
    afterClose: () => ending(child, ended),
  });
}

async function ending(child: ChildProcess, ended: Promise<void>): Promise<void> {
  child.ref();
  const timer = setTimeout(() => child.kill("SIGKILL"), EXIT_TIMEOUT_MS);
  await ended;
  clearTimeout(timer);
}
