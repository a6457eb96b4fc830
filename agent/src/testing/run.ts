import type { Exit, Process } from "@coppice/core/backend";
import type { AgentConnection } from "../agent-connection.js";
import type { SpawnRequest } from "../wire/spawn-request.js";

export const env = { PATH: "/usr/local/bin:/usr/bin:/bin" };

export interface Finished {
  readonly exit: Exit;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly terminal: Buffer;
}

/** Collects the output and exit of a process. */
export async function finish(process: Process): Promise<Finished> {
  const pieces = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[], terminal: [] as Uint8Array[] };
  for await (const { stream, data } of process.output) pieces[stream].push(data);
  return {
    exit: await process.exit,
    stdout: Buffer.concat(pieces.stdout),
    stderr: Buffer.concat(pieces.stderr),
    terminal: Buffer.concat(pieces.terminal),
  };
}

/** Runs a program without input. */
export async function run(
  agent: AgentConnection,
  path: string,
  args: readonly string[] = [],
  more: Partial<SpawnRequest> = {},
): Promise<Finished> {
  return finish(await agent.spawn({ path, args, env, cwd: "/", input: "none", ...more }));
}

/** Runs a shell script. */
export function shell(
  agent: AgentConnection,
  script: string,
  more: Partial<SpawnRequest> = {},
): Promise<Finished> {
  return run(agent, "/bin/sh", ["-c", script], more);
}
