import { spawn } from "node:child_process";
import { once } from "node:events";
import { open } from "node:fs/promises";
import type { Socket } from "node:net";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import {
  AgentConnection,
  type AgentProcess,
  connectSocket,
  HostConnection,
  startHostAgent,
} from "@coppice/agent";
import { SandboxError, messageOf, type Logger } from "@coppice/core";
import type { JailSettings } from "../jail-freebsd-config.js";

export type HostProgram = keyof JailSettings["programs"];

interface HostResult {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** A program of the host exited with a code other than 0. The message is its stderr. */
export class HostCommandError extends Error {
  override readonly name = "HostCommandError";
  readonly command: string;
  readonly stderr: string;

  constructor(program: HostProgram, args: readonly string[], { code, stderr }: HostResult) {
    super(`${program} ${args[0] ?? ""} ended with ${code}: ${stderr.trim()}`);
    this.command = [program, ...args].join(" ");
    this.stderr = stderr;
  }
}

/** The error of a program that failed. That of zfs(8) with a full pool is SandboxError resource_exhausted. */
export function failureOf(program: HostProgram, args: readonly string[], result: HostResult): Error {
  const cause = new HostCommandError(program, args, result);
  if (program !== "zfs" || !/out of space/.test(result.stderr)) return cause;
  return new SandboxError("disk_full", "the pool of the host is full", { cause });
}

interface HostCall {
  readonly input?: string;
  readonly timeoutMs?: number;
  /** Receives each whole line of stdout at once. The result has only what comes after the last of them. */
  readonly onLine?: (line: string) => void;
}

export interface HostOptions {
  /** Full paths. PATH is not searched: other systems have other programs of these names. */
  readonly programs: JailSettings["programs"];
  readonly agent: string;
  /** Path of the agent's socket. Without one the agent ends with this process, and nobody else has it. */
  readonly socket: string | undefined;
  readonly timeoutMs: number;
  /** Of a program's output, without the lines that `onLine` received. */
  readonly outputLimitBytes: number;
  readonly log: Pick<Logger, "debug" | "warn">;
}

const LINE_FEED = 10;
const CONNECT_TIMEOUT_MS = 5_000;
const CONNECT_PAUSE_MS = 2;
/** Of what a program writes to stderr while its stdout is handed on: the beginning says why. */
const STREAM_STDERR_BYTES = 4_096;
/** Time that a killed program gets to exit. One that waits in the kernel, for a disk or a lock, does not exit. */
const KILL_GRACE_MS = 2_000;
const ENVIRONMENT = { PATH: "/sbin:/bin:/usr/sbin:/usr/bin", LC_ALL: "C" };

/**
 * Programs of the host. They are started by a small agent process, so the server never forks for a request. The agent
 * and the jail processes it started outlive the server; a later server finds the agent by its socket.
 */
export class Host {
  readonly #options: HostOptions;
  readonly #connection = new HostConnection(() => this.#start());
  #isTakenOver = false;

  constructor(options: HostOptions) {
    this.#options = options;
  }

  /** True for the agent of an earlier process, which may have started others that depend on it. */
  get isTakenOver(): boolean {
    return this.#isTakenOver;
  }

  /**
   * Runs a program until it exits.
   * @param args passed unchanged; no shell sees them.
   * @throws SandboxError deadline_exceeded when it takes too long and is killed; resource_exhausted when it writes too
   * much.
   */
  async try(
    program: HostProgram,
    args: readonly string[],
    { input, timeoutMs = this.#options.timeoutMs, onLine }: HostCall = {},
  ): Promise<HostResult> {
    const startedAtMs = performance.now();
    const connection = await this.#connection.get();
    const started = await connection.spawn({
      path: this.#options.programs[program],
      args,
      env: ENVIRONMENT,
      cwd: "/",
      ...(input === undefined && { input: "none" }),
    });
    // A program that exits before it has read its input reports the reason by its code.
    const fed = input === undefined ? undefined : feed(started, input).catch(() => undefined);
    const abandoned = Promise.withResolvers<undefined>();
    let isLate = false;
    let timer = setTimeout(() => {
      isLate = true;
      started.kill("SIGKILL", "group").catch(() => undefined);
      timer = setTimeout(() => abandoned.resolve(undefined), KILL_GRACE_MS);
    }, timeoutMs);
    const ended = await Promise.race([
      Promise.all([collect(started, this.#options.outputLimitBytes, onLine), fed]),
      abandoned.promise,
    ]);
    clearTimeout(timer);
    const [result] = ended ?? [];
    const durationMs = Number((performance.now() - startedAtMs).toFixed(2));
    this.#options.log.debug(
      { program, args, code: result?.code, durationMs },
      "a program of the host has run",
    );
    if (isLate || result === undefined)
      throw new SandboxError("backend_timeout", `${program} took more than ${durationMs} ms`);
    if (result.hasTooMuch)
      throw new SandboxError("host_resources_exhausted", `${program} has written too much`);
    if (connection.isOver)
      throw new SandboxError("agent_unavailable", `the agent of the host went while ${program} ran`);
    const { code, stdout, stderr } = result;
    return { code: code ?? -1, stdout, stderr };
  }

  /** Runs a program that must succeed. @returns its stdout. @throws as `failureOf` */
  async run(program: HostProgram, args: readonly string[], call?: HostCall): Promise<string> {
    const result = await this.try(program, args, call);
    if (result.code !== 0) throw failureOf(program, args, result);
    return result.stdout;
  }

  /**
   * Runs a program that must succeed, and hands on its stdout as fast as it is read. It is killed when its reader stops
   * early. @throws as `failureOf`; SandboxError deadline_exceeded when it takes too long, or the signal's reason.
   */
  async *stream(
    program: HostProgram,
    args: readonly string[],
    { signal, timeoutMs }: { readonly signal: AbortSignal; readonly timeoutMs: number },
  ): AsyncIterable<Uint8Array> {
    const connection = await this.#connection.get();
    signal.throwIfAborted();
    const path = this.#options.programs[program];
    const started = await connection.spawn({ path, args, env: ENVIRONMENT, cwd: "/", input: "none" });
    const late = AbortSignal.timeout(timeoutMs);
    const ended = AbortSignal.any([signal, late]);
    const kill = (): void => void started.kill("SIGKILL", "group").catch(() => undefined);
    let [stderr, hasEnded] = ["", false];
    try {
      ended.addEventListener("abort", kill);
      if (ended.aborted) kill();
      for await (const { stream, data } of started.output) {
        if (stream !== "stderr") yield data;
        else if (stderr.length < STREAM_STDERR_BYTES) stderr += Buffer.from(data).toString();
        signal.throwIfAborted();
      }
      const { code = -1 } = await started.exit;
      hasEnded = true;
      signal.throwIfAborted();
      if (late.aborted)
        throw new SandboxError("backend_timeout", `${program} took more than ${timeoutMs} ms`);
      if (code !== 0) throw failureOf(program, args, { code, stdout: "", stderr });
    } finally {
      ended.removeEventListener("abort", kill);
      if (!hasEnded) kill();
    }
  }

  /**
   * Runs a program that removes something.
   * @param missing matches its stderr when there was nothing to remove, which counts as success.
   * @throws HostCommandError
   */
  async remove(program: HostProgram, args: readonly string[], missing: RegExp): Promise<void> {
    const result = await this.try(program, args);
    if (result.code !== 0 && !missing.test(result.stderr)) throw new HostCommandError(program, args, result);
  }

  /** Runs the agent with a listening socket inside a jail, through a program that enters the jail. */
  async serveInside(socket: string, program: HostProgram, args: readonly string[]): Promise<AgentProcess> {
    return this.#serve(socket, [this.#options.programs[program], ...args]);
  }

  /** Runs the agent with a listening socket on the host. It starts its commands through a program. */
  async serveOutside(socket: string, program: HostProgram, args: readonly string[]): Promise<AgentProcess> {
    const { agent, programs } = this.#options;
    return this.#serve(socket, [agent, "listen", "3", programs[program], ...args]);
  }

  async #serve(socket: string, words: readonly string[]): Promise<AgentProcess> {
    const connection = await this.#connection.get();
    return connection.spawn({
      path: this.#options.agent,
      args: ["bind", socket, ...words],
      env: ENVIRONMENT,
      cwd: "/",
      input: "none",
      label: socket,
    });
  }

  /** Agents that still run, for this server or an earlier one. */
  async served(): Promise<readonly AgentProcess[]> {
    return (await this.#connection.get()).processes();
  }

  /** Leaves the agent to a later server, or ends it when nothing depends on it. */
  async close({ isEmpty }: { readonly isEmpty: boolean }): Promise<void> {
    await this.#connection.close(async (connection) => {
      if (!isEmpty || connection.isOver) return;
      await connection.end().catch((error: unknown) => {
        this.#options.log.warn({ err: error }, "the agent of the host was left running");
      });
    });
  }

  /**
   * Ends the programs of an earlier process that was killed meanwhile. They would make something after this one has
   * looked what is there.
   */
  async #endCommands(connection: AgentConnection): Promise<void> {
    const running = (await connection.processes()).filter(({ label }) => label === "");
    const end = async (left: AgentProcess) => {
      await left.kill("SIGKILL", "group").catch(() => undefined);
      await Promise.race([left.exit, sleep(KILL_GRACE_MS, undefined, { ref: false })]);
      left.release();
    };
    await Promise.all(running.map(end));
  }

  async #start(): Promise<AgentConnection> {
    const { agent, socket } = this.#options;
    if (socket === undefined) return startHostAgent({ binary: agent });
    const found = await connectSocket(socket).catch(() => undefined);
    if (found !== undefined) {
      this.#isTakenOver = true;
      const connection = await AgentConnection.open(found);
      await this.#endCommands(connection);
      return connection;
    }
    // Not the server's stderr: daemon(8) waits until every process that holds its pipe has ended, and this one outlives
    // the server. Each agent begins the file anew, so it needs no rotation.
    const log = await open(join(dirname(socket), "agent.log"), "w", 0o600);
    const child = spawn(agent, ["bind", socket, agent, "listen", "3"], {
      stdio: ["ignore", "ignore", log.fd],
      detached: true,
      cwd: "/",
      env: ENVIRONMENT,
    });
    try {
      await once(child, "spawn");
    } catch (error) {
      const message = `cannot start the agent of the host: ${messageOf(error)}`;
      throw new SandboxError("agent_unavailable", message, { cause: error });
    } finally {
      await log.close();
    }
    child.on("error", () => undefined);
    child.unref();
    return AgentConnection.open(await connectSoon(socket, AbortSignal.timeout(CONNECT_TIMEOUT_MS)));
  }
}

/** Collects the output and exit of a program. Never rejects. */
async function collect(started: AgentProcess, limitBytes: number, onLine: HostCall["onLine"]) {
  const output = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[] };
  let left = limitBytes;
  for await (const { stream, data } of started.output) {
    if (left < 0) continue;
    const name = stream === "stderr" ? "stderr" : "stdout";
    output[name].push(data);
    left -= data.byteLength;
    if (onLine !== undefined && name === "stdout") left += handOn(output.stdout, onLine);
  }
  const { code } = await started.exit;
  const textOf = (pieces: readonly Uint8Array[]) => Buffer.concat(pieces).toString();
  return { code, stdout: textOf(output.stdout), stderr: textOf(output.stderr), hasTooMuch: left < 0 };
}

/** Hands on the whole lines in pieces of output, of which it keeps the rest. @returns how many bytes they were. */
function handOn(pieces: Uint8Array[], onLine: (line: string) => void): number {
  const last = pieces.pop() ?? new Uint8Array();
  const end = last.lastIndexOf(LINE_FEED) + 1;
  if (end === 0) {
    pieces.push(last);
    return 0;
  }
  const whole = Buffer.concat([...pieces, last.subarray(0, end)]);
  pieces.splice(0, pieces.length, last.subarray(end));
  for (const line of whole.toString().split("\n").slice(0, -1)) onLine(line);
  return whole.byteLength;
}

async function feed(started: AgentProcess, input: string): Promise<void> {
  await started.write(Buffer.from(input));
  await started.closeInput();
}

export async function connectSoon(path: string, signal: AbortSignal): Promise<Socket> {
  for (;;) {
    signal.throwIfAborted();
    try {
      return await connectSocket(path);
    } catch {
      await sleep(CONNECT_PAUSE_MS, undefined, { signal });
    }
  }
}
