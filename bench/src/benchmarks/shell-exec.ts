import { BenchedServer } from "../kit/benched-server.js";
import type { Benchmark, Contender } from "../kit/benchmark.js";
import { startOverConnect } from "../kit/start-over-connect.js";

/** Size of the output, unless the benchmark's limit is smaller. */
const MOST_BYTES = 100 * 2 ** 20;

/** Commands of a session, whose shell is there already, beside commands that are started. */
export const shellExec: Benchmark = async (_server, { backend, largeBytes }) => {
  const bytes = Math.min(MOST_BYTES, largeBytes);
  const server = await BenchedServer.start(backend, {
    settings: { "shell-sessions": { maxOutput: `${bytes}B` } },
  });
  const sandbox = await server.createSandbox();
  const start = async (cmd: string, args: readonly string[], leastBytes = 0): Promise<void> => {
    const { body } = await startOverConnect(server, sandbox, { cmd, args });
    if (body.length < leastBytes) throw new Error(`an answer of ${body.length} bytes`);
  };
  const execute = async (command: string, leastBytes = 0, path = "/api/execute"): Promise<void> => {
    const { body } = await server.request(
      {
        method: "POST",
        path,
        headers: { ...sandbox.headers(3000), "content-type": "application/json" },
        body: JSON.stringify({ command, sessionId: "bench" }),
      },
      200,
    );
    if (body.length < leastBytes) throw new Error(`an answer of ${body.length} bytes`);
  };
  const script = `head -c ${bytes} /dev/zero | tr '\\0' x`;
  const large = (label: string, once: Contender["once"]): Contender => ({
    label,
    bytes,
    watched: server.process,
    once,
  });
  return {
    comparisons: [
      {
        title: "shell-exec: true",
        floor: { label: "process.Process/Start true", once: () => start("true", []) },
        contenders: [{ label: "POST /api/execute true, in a session", once: () => execute("true") }],
      },
      {
        title: `shell-exec: ${Math.round(bytes / 2 ** 20)} MiB of a command's output`,
        floor: large("process.Process/Start as JSON", () => start("/bin/sh", ["-c", script], bytes)),
        contenders: [
          large("POST /api/execute, in a session", () => execute(script, bytes)),
          large("POST /api/execute/stream", () => execute(script, bytes, "/api/execute/stream")),
        ],
      },
    ],
    close: () => server[Symbol.asyncDispose](),
  };
};
