import { mkdir, readFile, rm, stat, appendFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { AgentConnection, connectSocket } from "@coppice/agent";
import { isThere } from "./host-facts.js";
import { Host, type HostOptions } from "./host.js";

const TAG = "coppice-doctor";
/** On a busy host each start of Node takes seconds. */
const ROUNDS = 300;
const ROUND_MS = 100;

/**
 * Has daemon(8) supervise a program that starts an agent of the host and ends, as a server that crashes while sandboxes
 * live. daemon(8) reads the pipe of a program to its end before it begins it again: whatever held that would keep a
 * server down.
 * @param server its directory exists during the trial alone.
 * @throws Error when the program was not begun again.
 */
export async function tryDaemon(host: Host, server: RestartedServer): Promise<void> {
  const { directory } = server;
  const pidFile = join(directory, "daemon.pid");
  const isBegunAgain = () => holds(async () => (await startsIn(directory)) > 1 && !(await isThere(pidFile)));
  await rm(directory, { recursive: true, force: true });
  await mkdir(directory, { mode: 0o700 });
  try {
    const options = ["-f", "-r", "-R", "1", "-S", "-T", TAG, "-P", pidFile];
    await host.run("daemon", [...options, process.execPath, import.meta.filename, JSON.stringify(server)]);
    if (await isBegunAgain()) return;
    const starts = await startsIn(directory);
    const what =
      ["not at all", "once, and not again after its end"][starts] ?? "again, and has not ended with it";
    const log = await readFile(join(directory, "agent.log"), "utf8").catch(() => "");
    throw new Error(`daemon(8) has begun a program ${what} ${log}`.trim());
  } finally {
    // With the agent the pipe ends, and daemon(8) goes on.
    await endAgent(join(directory, SOCKET));
    await holds(async () => !(await isThere(pidFile)));
    await rm(directory, { recursive: true, force: true });
  }
}

async function holds(condition: () => Promise<boolean>): Promise<boolean> {
  for (let round = 0; round < ROUNDS; round++) {
    if (await condition()) return true;
    await sleep(ROUND_MS);
  }
  return false;
}

async function startsIn(directory: string): Promise<number> {
  return (await stat(join(directory, STARTS)).catch(() => ({ size: 0 }))).size;
}

async function endAgent(socket: string): Promise<void> {
  const found = await connectSocket(socket).catch(() => undefined);
  if (found === undefined) return;
  const agent = await AgentConnection.open(found);
  await agent.end();
  await agent.close();
}

interface RestartedServer extends Pick<HostOptions, "agent" | "programs" | "outputLimitBytes"> {
  /** Where its agent listens, and STARTS counts its starts, a byte for each. */
  readonly directory: string;
}

const SOCKET = "host.sock";
const STARTS = "starts";

/**
 * What daemon(8) supervises: it starts the agent of the host as a server does, and ends as a server
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
