import { spawn } from "node:child_process";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { AgentConnection, type AgentProcess } from "@coppice/agent";
import { SandboxError, messageOf, type Logger } from "@coppice/core";
import type { JailSettings } from "../jail-freebsd-config.js";

/** A program of the host that the backend may run. */
export type HostProgram = keyof JailSettings["programs"];

/** How a program of the host ended. */
export interface HostResult {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** A program of the host ended with another code than 0. Its message is what the program wrote on stderr. */
export class HostCommandError extends Error {
  override readonly name = "HostCommandError";
  readonly stderr: string;

  constructor(program: HostProgram, args: readonly string[], { code, stderr }: HostResult) {
    super(`${program} ${args[0] ?? ""} ended with ${code}: ${stderr.trim()}`);
    this.stderr = stderr;
  }
}

/** What a program of the host is given beside its arguments. */
export interface HostCall {
  /** Its stdin; nothing when absent. */
  readonly input?: string;
  /** How long it may take, where that is not as long as others. */
  readonly timeoutMs?: number;
}

export interface HostOptions {
  /** Full paths: nothing is looked up, for other systems have other programs of these names. */
  readonly programs: JailSettings["programs"];
  /** The agent's program, which starts all others. */
  readonly agent: string;
  /** Where it listens. */
  readonly socket: string;
  readonly timeoutMs: number;
  readonly log: Pick<Logger, "debug" | "warn">;
}

const OUTPUT_LIMIT_BYTES = 8 * 2 ** 20;
const CONNECT_TIMEOUT_MS = 5_000;
const CONNECT_PAUSE_MS = 2;
/** How long one that was killed may take to end: what waits in the kernel, for a disk or a lock, does not. */
const KILL_GRACE_MS = 2_000;
const ENVIRONMENT = { PATH: "/sbin:/bin:/usr/sbin:/usr/bin", LC_ALL: "C" };

/**
 * The host, by its programs. They are started by an agent, a small process of its own: the server never forks
 * for a request. The agent outlives the server, and with it what it started in jails; a later server finds it
 * by its socket.
 */
export class Host {
  readonly #options: HostOptions;
  #connection: Promise<AgentConnection> | undefined;
  #isClosed = false;

  constructor(options: HostOptions) {
    this.#options = options;
  }

  /**
   * Runs a program to its end.
   * @param args handed over as they are; no shell sees them.
   * @throws SandboxError deadline_exceeded when it takes too long: it was killed; resource_exhausted when it
   * writes more than can be kept.
   */
  async try(
    program: HostProgram,
    args: readonly string[],
    { input, timeoutMs = this.#options.timeoutMs }: HostCall = {},
  ): Promise<HostResult> {
    const startedAtMs = performance.now();
    const connection = await this.#connect();
    const started = await connection.spawn({
      path: this.#options.programs[program],
      args,
      env: ENVIRONMENT,
      cwd: "/",
      ...(input === undefined && { input: "none" }),
    });
    // One that ends before it has read all says why by its code.
    const fed = input === undefined ? undefined : feed(started, input).catch(() => undefined);
    const abandoned = Promise.withResolvers<undefined>();
    let isLate = false;
    let timer = setTimeout(() => {
      isLate = true;
      started.kill("SIGKILL", "group").catch(() => undefined);
      timer = setTimeout(() => abandoned.resolve(undefined), KILL_GRACE_MS);
    }, timeoutMs);
    const ended = await Promise.race([Promise.all([collect(started), fed]), abandoned.promise]);
    clearTimeout(timer);
    const [result] = ended ?? [];
    const durationMs = Number((performance.now() - startedAtMs).toFixed(2));
    this.#options.log.debug(
      { program, args, code: result?.code, durationMs },
      "a program of the host has run",
    );
    if (isLate || result === undefined) {
      throw new SandboxError("deadline_exceeded", `${program} took more than ${durationMs} ms`);
    }
    if (result.hasTooMuch) throw new SandboxError("resource_exhausted", `${program} has written too much`);
    if (connection.isOver) {
      throw new SandboxError("unavailable", `the agent of the host went while ${program} ran`);
    }
    const { code, stdout, stderr } = result;
    return { code: code ?? -1, stdout, stderr };
  }

  /** Runs a program that has to succeed. @returns its stdout. @throws HostCommandError */
  async run(program: HostProgram, args: readonly string[], call?: HostCall): Promise<string> {
    const result = await this.try(program, args, call);
    if (result.code !== 0) throw new HostCommandError(program, args, result);
    return result.stdout;
  }

  /**
   * Runs a program that takes something away.
   * @param missing what it says on stderr where there is no such thing, which is fine.
   * @throws HostCommandError
   */
  async remove(program: HostProgram, args: readonly string[], missing: RegExp): Promise<void> {
    const result = await this.try(program, args);
    if (result.code !== 0 && !missing.test(result.stderr)) throw new HostCommandError(program, args, result);
  }

  /** Runs the agent with a listening socket, by way of a program that takes it into a jail. */
  async serveInside(socket: string, program: HostProgram, args: readonly string[]): Promise<AgentProcess> {
    return this.#serve(socket, [this.#options.programs[program], ...args]);
  }

  /** Runs the agent with a listening socket here, to start what it is asked for by way of a program. */
  async serveOutside(socket: string, program: HostProgram, args: readonly string[]): Promise<AgentProcess> {
    const { agent, programs } = this.#options;
    return this.#serve(socket, [agent, "listen", "3", programs[program], ...args]);
  }

  async #serve(socket: string, words: readonly string[]): Promise<AgentProcess> {
    const connection = await this.#connect();
    return connection.spawn({
      path: this.#options.agent,
      args: ["bind", socket, ...words],
      env: ENVIRONMENT,
      cwd: "/",
      input: "none",
      label: socket,
    });
  }

  /** What still runs, for this server or an earlier one. */
  async served(): Promise<readonly AgentProcess[]> {
    return (await this.#connect()).processes();
  }

  /** Leaves the agent to a later server, or ends it when nothing is left for one. */
  async close({ isEmpty }: { readonly isEmpty: boolean }): Promise<void> {
    this.#isClosed = true;
    const connection = await this.#connection?.catch(() => undefined);
    if (connection === undefined) return;
    if (isEmpty && !connection.isOver) {
      await connection.end().catch((error: unknown) => {
        this.#options.log.warn({ err: error }, "the agent of the host was left running");
      });
    }
    await connection.close();
  }

  async #connect(): Promise<AgentConnection> {
    if (this.#isClosed) throw new SandboxError("unavailable", "the server is stopping");
    const known = await this.#connection?.catch(() => undefined);
    if (known !== undefined && !known.isOver) return known;
    if (known !== undefined) this.#connection = undefined;
    this.#connection ??= this.#start().catch((error: unknown) => {
      this.#connection = undefined;
      throw error;
    });
    return this.#connection;
  }

  async #start(): Promise<AgentConnection> {
    const { agent, socket } = this.#options;
    const found = await connectTo(socket).catch(() => undefined);
    if (found !== undefined) return AgentConnection.open(found);
    const child = spawn(agent, ["bind", socket, agent, "listen", "3"], {
      stdio: ["ignore", "ignore", "inherit"],
      detached: true,
      cwd: "/",
      env: ENVIRONMENT,
    });
    try {
      await once(child, "spawn");
    } catch (error) {
      const message = `cannot start the agent of the host: ${messageOf(error)}`;
      throw new SandboxError("unavailable", message, { cause: error });
    }
    child.on("error", () => undefined);
    child.unref();
    return AgentConnection.open(await connectSoon(socket, AbortSignal.timeout(CONNECT_TIMEOUT_MS)));
  }
}

/** What a program writes, and what it ends with. Never rejects. */
async function collect(started: AgentProcess) {
  const output = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[] };
  let left = OUTPUT_LIMIT_BYTES;
  for await (const { stream, data } of started.output) {
    left -= data.byteLength;
    if (left >= 0) output[stream === "stderr" ? "stderr" : "stdout"].push(data);
  }
  const { code } = await started.exit;
  const textOf = (pieces: readonly Uint8Array[]) => Buffer.concat(pieces).toString();
  return { code, stdout: textOf(output.stdout), stderr: textOf(output.stderr), hasTooMuch: left < 0 };
}

async function feed(started: AgentProcess, input: string): Promise<void> {
  await started.write(Buffer.from(input));
  await started.closeInput();
}

/** Connects to a socket that is about to be made. */
export async function connectSoon(path: string, signal: AbortSignal): Promise<Socket> {
  for (;;) {
    signal.throwIfAborted();
    try {
      return await connectTo(path);
    } catch {
      await sleep(CONNECT_PAUSE_MS, undefined, { signal });
    }
  }
}

/** @throws Error when nobody listens there. */
export async function connectTo(path: string): Promise<Socket> {
  const socket = connect(path);
  try {
    await once(socket, "connect");
    return socket;
  } catch (error) {
    socket.destroy();
    throw error;
  }
}
