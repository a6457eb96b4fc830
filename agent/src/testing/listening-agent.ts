import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { once } from "node:events";
import { type Socket, connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { agentBinary } from "../built/agent-binary.js";
import { AgentConnection, type AgentConnectionOptions } from "../agent-connection.js";

/** A listening agent in a separate process. */
export interface ListeningAgent extends AsyncDisposable {
  readonly child: ChildProcess;
  connect(options?: AgentConnectionOptions): Promise<AgentConnection>;
  /** Opens a plain connection. */
  socket(): Promise<Socket>;
}

/**
 * @param wrapper a program with arguments that runs the command after them, such as `unshare`.
 * @param way a program with arguments through which others are started.
 */
export async function startListeningAgent(
  wrapper: readonly string[] = [],
  flags: readonly string[] = [],
  way: readonly string[] = [],
): Promise<ListeningAgent> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-agent-"));
  const path = join(directory, "socket");
  const binary = agentBinary() ?? "";
  const words = ["bind", path, ...wrapper, binary, ...flags, "listen", "3", ...way];
  const child = spawn(binary, words, {
    stdio: ["ignore", "ignore", "inherit"],
    env: { PATH: "/usr/sbin:/usr/bin:/bin" },
  });
  const exited = once(child, "exit");
  const socket = async (): Promise<Socket> => {
    for (;;) {
      const attempt = connect({ path });
      try {
        await once(attempt, "connect");
        return attempt;
      } catch (error) {
        attempt.destroy();
        if (child.exitCode !== null || child.signalCode !== null) throw error;
      }
    }
  };
  return {
    child,
    socket,
    connect: async (options) => AgentConnection.open(await socket(), options),
    [Symbol.asyncDispose]: async () => {
      child.kill("SIGKILL");
      await exited;
      await rm(directory, { recursive: true, force: true });
    },
  };
}
