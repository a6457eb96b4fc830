import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { Socket } from "node:net";
import { SandboxError } from "@coppice/core";
import type { UserNamespace } from "./user-namespace.js";
import { REASONS } from "../reasons.js";

const OPERATIONS = {
  lock: 1,
  launch: 2,
  end: 3,
  remove: 4,
  run: 5,
  disk: 6,
  start: 7,
  confine: 8,
  kill: 9,
  connect: 10,
  prepare: 11,
} as const;
type Operation = keyof typeof OPERATIONS;

const HEADER_BYTES = 9;
const FRAME_LIMIT_BYTES = 1 << 20;
const ARRIVAL_MS = 5_000;

/** First process of a sandbox. Pid and start time identify it even if the pid is reused. */
export interface Init {
  readonly pid: number;
  /** In clock ticks since the boot of the host. */
  readonly start: string;
}

export interface HostRun {
  readonly code: number;
  readonly output: string;
}

export interface GroupFile {
  readonly path: string;
  readonly text: string;
  /** True for a file that some kernels do not have. */
  readonly isOptional: boolean;
}

/** Files of a directory, as far as they were looked at. */
interface Measurement {
  readonly bytes: number;
  /** True when names changed meanwhile: what was moved may not be counted. */
  readonly hasChanged: boolean;
}

interface Preparation {
  readonly record: { readonly path: string; readonly text: string };
  readonly groups: readonly string[];
  readonly files: readonly GroupFile[];
}

interface Waiting {
  resolve(texts: readonly string[]): void;
  reject(error: Error): void;
}

/**
 * A process that does the host's work that needs a fork: its cost does not grow with the server's memory, and the
 * server spends no time on it. It ends with the server, while sandboxes live on. If it ends earlier, pending requests
 * fail and the next request starts another one.
 */
export class Launcher {
  readonly #binary: string;
  readonly #users: UserNamespace | undefined;
  /** By pid, first processes of sandboxes that may still run. */
  readonly #living: Map<number, Init>;
  readonly #waiting = new Map<number, Waiting>();
  /** By the number of a request, who waits for its connection. */
  readonly #connecting = new Map<number, (connection: Socket) => void>();
  #running: { readonly child: ChildProcess; readonly socket: Socket } | undefined;
  #received: Buffer = Buffer.alloc(0);
  #next = 1;
  #locked: string | undefined;
  #isClosed = false;

  /**
   * @param users of a server that is not root. Every request fails with the reason if they are unavailable.
   * @param living first processes of sandboxes of earlier servers, for a server that is not root.
   */
  constructor(binary: string, users?: UserNamespace, living: readonly Init[] = []) {
    this.#binary = binary;
    this.#users = users;
    this.#living = new Map(living.map((init) => [init.pid, init]));
  }

  /** Locks a directory for this server until the launcher ends. @throws Error when another server has it. */
  async lock(directory: string): Promise<void> {
    await this.#ask("lock", [directory]);
    this.#locked = directory;
  }

  /**
   * Starts the first process of a sandbox.
   * @param directory gets the files `agent.sock` and `init` of the sandbox.
   * @param unifiedGroup control group of version 2 to start in; empty for none.
   * @param firstId first of the sandbox's own ids on the host; without it the sandbox has the host's ids.
   * @throws Error with the failed instruction; then no process runs.
   */
  async launch(
    directory: string,
    unifiedGroup: string,
    instructions: readonly string[],
    firstId?: number,
  ): Promise<Init> {
    const first = firstId === undefined ? "" : String(firstId);
    const [pid, start] = await this.#ask("launch", [directory, unifiedGroup, first, ...instructions]);
    const init = { pid: Number(pid), start: start ?? "" };
    this.#living.set(init.pid, init);
    return init;
  }

  /**
   * Kills the first process of a sandbox, and with it all others. Resolves when they are gone.
   * @param thawFile of a version 1 freezer.
   */
  async end(init: Init, thawFile = ""): Promise<void> {
    await this.#ask("end", [String(init.pid), init.start, thawFile]);
    if (this.#living.get(init.pid)?.start === init.start) this.#living.delete(init.pid);
  }

  /** Removes files and trees that no other process can change. Missing ones are fine. */
  async remove(...paths: readonly string[]): Promise<void> {
    await this.#ask("remove", paths);
  }

  /**
   * Writes the record of a sandbox, then makes its control groups, then writes to their files.
   * @throws Error that names the path.
   */
  async prepare({ record, groups, files }: Preparation): Promise<void> {
    const texts = files.flatMap(({ path, text, isOptional }) => [`${isOptional ? "-" : ""}${path}`, text]);
    await this.#ask("prepare", [record.path, record.text, String(groups.length), ...groups, ...texts]);
  }

  /** Runs a program of the host. @param input at most 64 KiB. */
  async run(argv: readonly string[], input = ""): Promise<HostRun> {
    const [code, output] = await this.#ask("run", [input, ...argv]);
    return { code: Number(code), output: output ?? "" };
  }

  /**
   * Runs the program of instructions in namespaces that end with it, with this launcher, or by the signal.
   * @param firstId as for `launch`.
   * @throws Error with the failed instruction, or the signal's reason.
   */
  async confine(
    instructions: readonly string[],
    firstId: number | undefined,
    signal: AbortSignal,
  ): Promise<HostRun> {
    signal.throwIfAborted();
    const first = firstId === undefined ? "" : String(firstId);
    const running = this.#send("confine", [first, ...instructions]);
    // A launcher that has ended meanwhile took the program with it.
    const kill = (): void => void this.#ask("kill", [String(running.number)]).catch(() => undefined);
    signal.addEventListener("abort", kill, { once: true });
    try {
      const [code, output] = await running.answer;
      signal.throwIfAborted();
      return { code: Number(code), output: output ?? "" };
    } finally {
      signal.removeEventListener("abort", kill);
    }
  }

  /**
   * Starts a program of the host, by its full path, that outlives this server.
   * @param directory gets the files `program` (its pid and start time) and `log` (the beginning of its output).
   */
  async start(directory: string, argv: readonly string[]): Promise<Init> {
    const [pid, start] = await this.#ask("start", [directory, ...argv]);
    return { pid: Number(pid), start: start ?? "" };
  }

  /** Runs an operation of `native/disk.h`. @returns the answer as text. */
  async disk(
    question: string,
    directory: string,
    ...parameters: readonly (number | string)[]
  ): Promise<string> {
    const [answer] = await this.#ask("disk", [question, directory, ...parameters.map(String)]);
    return answer ?? "";
  }

  /**
   * Measures the files of a directory.
   * @param entries the maximum of them that are looked at.
   * @param processes file of the processes whose removed files count, too.
   */
  async measure(directory: string, entries: number, processes?: string): Promise<Measurement> {
    const parameters = processes === undefined ? [entries] : [entries, processes];
    const [bytes, changed] = (await this.disk("measure", directory, ...parameters)).split(" ");
    return { bytes: Number(bytes), hasChanged: changed !== undefined };
  }

  /**
   * Opens a connection to a loopback port in the network of a sandbox.
   * @throws Error with the reason of the kernel, or the signal's.
   */
  async connect(init: Init, port: number, signal: AbortSignal): Promise<Socket> {
    signal.throwIfAborted();
    const { number, answer } = this.#send("connect", [String(init.pid), init.start, String(port)]);
    const { promise, resolve, reject } = Promise.withResolvers<Socket>();
    let timer: NodeJS.Timeout | undefined;
    const expect = (): void => {
      // It never arrives at a server without a free descriptor.
      const lost = new SandboxError(REASONS.launcher_unavailable, "the connection did not arrive");
      if (this.#connecting.has(number)) timer = setTimeout(reject, ARRIVAL_MS, lost);
    };
    const abandon = (): void => reject(signal.reason);
    this.#connecting.set(number, resolve);
    answer.then(expect, reject);
    signal.addEventListener("abort", abandon, { once: true });
    try {
      return await promise;
    } finally {
      this.#connecting.delete(number);
      signal.removeEventListener("abort", abandon);
      clearTimeout(timer);
    }
  }

  /** Ends the process and waits for its exit. Later requests are rejected. */
  async close(): Promise<void> {
    this.#isClosed = true;
    if (this.#running === undefined) return;
    const { child, socket } = this.#running;
    child.ref();
    const ended = once(child, "exit");
    socket.destroy();
    await ended;
  }

  #start(): Socket {
    const [neighbour = ""] = this.#living.keys();
    const words = this.#users === undefined ? [] : [...this.#users.words, String(neighbour)];
    const child = spawn(this.#binary, words, {
      stdio: ["ignore", "ignore", "inherit", "pipe", "ipc"],
      env: {},
      // Protected from a terminal's Ctrl-C, which is for the server.
      detached: true,
    });
    const socket = child.stdio[3] as Socket;
    const running = { child, socket };
    const fail = (error: Error): void => {
      if (this.#running === running) this.#lose(error);
    };
    child.on("error", fail);
    child.on("exit", () => fail(new Error("unexpected exit")));
    socket.on("error", fail);
    socket.on("data", (data: Buffer) => this.#receive(data));
    child.on("message", (number: number, connection) => {
      if (!(connection instanceof Socket)) return;
      // An error before anybody listens would end the server.
      connection.on("error", () => undefined);
      const take = this.#connecting.get(number);
      if (take === undefined) connection.destroy();
      else take(connection);
    });
    // It must not keep the server's event loop alive.
    child.unref();
    child.channel?.unref();
    socket.unref();
    this.#running = running;
    this.#received = Buffer.alloc(0);
    // Requests are handled in order, so the next one finds the directory locked again.
    if (this.#locked !== undefined) void this.#ask("lock", [this.#locked]).catch(() => undefined);
    return socket;
  }

  async #ask(operation: Operation, texts: readonly string[]): Promise<readonly string[]> {
    return this.#send(operation, texts).answer;
  }

  #send(
    operation: Operation,
    texts: readonly string[],
  ): { readonly number: number; readonly answer: Promise<readonly string[]> } {
    if (this.#isClosed) throw new SandboxError(REASONS.launcher_unavailable, "the launcher was closed");
    const parts = texts.map((text) => Buffer.from(text));
    const length = parts.reduce((sum, part) => sum + 4 + part.byteLength, HEADER_BYTES);
    if (length > FRAME_LIMIT_BYTES || parts.some((part) => part.includes(0)))
      throw new SandboxError("request_invalid", `cannot ask the launcher to ${operation} that`);
    const socket = this.#running?.socket ?? this.#start();
    const number = this.#next++;
    const frame = Buffer.alloc(length);
    frame.writeUInt32LE(length - 4, 0);
    frame.writeUInt32LE(number, 4);
    frame.writeUInt8(OPERATIONS[operation], 8);
    let at = HEADER_BYTES;
    for (const part of parts) {
      at = frame.writeUInt32LE(part.byteLength, at);
      at += part.copy(frame, at);
    }
    const answer = Promise.withResolvers<readonly string[]>();
    this.#waiting.set(number, answer);
    socket.ref();
    socket.write(frame);
    return { number, answer: answer.promise };
  }

  #receive(data: Buffer): void {
    this.#received = Buffer.concat([this.#received, data]);
    while (this.#received.byteLength >= 4) {
      const length = 4 + this.#received.readUInt32LE(0);
      if (this.#received.byteLength < length) break;
      this.#settle(this.#received.subarray(0, length));
      this.#received = this.#received.subarray(length);
    }
  }

  #settle(frame: Buffer): void {
    const number = frame.readUInt32LE(4);
    const waiting = this.#waiting.get(number);
    this.#waiting.delete(number);
    if (this.#waiting.size === 0) this.#running?.socket.unref();
    const texts: string[] = [];
    for (let at = HEADER_BYTES; at < frame.byteLength;) {
      const end = at + 4 + frame.readUInt32LE(at);
      texts.push(frame.toString("utf8", at + 4, end));
      at = end;
    }
    if (frame.readUInt8(8) === 0) waiting?.resolve(texts);
    else waiting?.reject(new Error(texts[0] ?? "the launcher does not say why"));
  }

  #lose(error: Error): void {
    this.#running = undefined;
    const lost = new SandboxError(REASONS.launcher_unavailable, `the launcher has ended: ${error.message}`, {
      cause: error,
    });
    for (const waiting of this.#waiting.values()) waiting.reject(lost);
    this.#waiting.clear();
  }
}
