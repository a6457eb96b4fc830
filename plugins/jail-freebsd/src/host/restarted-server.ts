import { appendFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { Host, type HostOptions } from "./host.js";

/** Arguments of the program below. */
export interface RestartedServer extends Pick<HostOptions, "agent" | "programs" | "outputLimitBytes"> {
  /** Where its agent listens, and STARTS counts its starts, a byte for each. */
  readonly directory: string;
}

export const SOCKET = "host.sock";
export const STARTS = "starts";

/**
 * What daemon-trial.ts has daemon(8) supervise: it starts the agent of the host as a server does, and ends as a server
 * that crashes. When it is begun again, it ends daemon(8).
 */
async function main(text: string): Promise<void> {
  const { directory, ...options } = JSON.parse(text) as RestartedServer;
  const starts = join(directory, STARTS);
  await appendFile(starts, ".").catch(() => undefined);
  // Without a size the trial is over.
  const { size } = await stat(starts).catch(() => ({ size: undefined }));
  if (size !== 1) process.kill(process.ppid, "SIGTERM");
  else {
    const log = { debug: () => undefined, warn: () => undefined };
    const host = new Host({ ...options, socket: join(directory, SOCKET), timeoutMs: 0, log });
    await host.served();
  }
  // Without a word to the agent, which outlives it.
  process.exit(1);
}

const [, program = "", text] = process.argv;
if (program === import.meta.filename && text !== undefined) await main(text);
