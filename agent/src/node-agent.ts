// Replacement for the agent where it could not be built: only starts programs. Run as a separate process with the
// descriptor of a connected socket: `node node-agent.js 3`.
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import {
  closeSync,
  constants as fileConstants,
  lstatSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  unlinkSync,
} from "node:fs";
import { Socket } from "node:net";
import { constants, tmpdir } from "node:os";
import { join } from "node:path";
import { FrameReader } from "./wire/frame-reader.js";
import { FrameWriter } from "./wire/frame-writer.js";
import {
  FRAME_COST,
  type Frame,
  INPUT_WINDOW_BYTES,
  MAGIC,
  PayloadReader,
  PayloadWriter,
  ProtocolError,
  Reply,
  Request,
  Stage,
  VERSION,
} from "./wire/frames.js";

const CHUNK_BYTES = 65_536;
const LEFT_IN_PIPE_BYTES = 1_048_576;
const PIPES_AT_ONCE = 64;
const LONGEST_PAUSE_MS = 250;

const connection = new Socket({ fd: Number(process.argv[2]), allowHalfOpen: false });
const writer = new FrameWriter(connection);
const reader = new FrameReader();
const programs = new Map<number, Program>();
const directory = makeDirectory();
const pipes: string[] = [];
let madePipes = 0;

/** Creates a directory named after its process, so that the next process can remove what a killed one left. */
function makeDirectory(): string {
  // Pids are unique within one namespace, and containers of one host may share this directory.
  const processes = process.platform === "linux" ? statSync("/proc/self/ns/pid").ino : 0;
  const prefix = `coppice-node-agent-${processes}-`;
  for (const name of readdirSync(tmpdir())) {
    const pid = name.startsWith(prefix) ? /^\d+(?=-)/.exec(name.slice(prefix.length))?.[0] : undefined;
    if (pid === undefined || isAlive(Number(pid))) continue;
    const path = join(tmpdir(), name);
    if (lstatSync(path).uid === process.getuid?.()) rmSync(path, { recursive: true, force: true });
  }
  return mkdtempSync(join(tmpdir(), `${prefix}${process.pid}-`));
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

interface Account {
  readonly name: string;
  readonly uid: number;
  readonly gid: number;
  readonly home: string;
  readonly shell: string;
}

function accounts(): readonly Account[] {
  return readFileSync("/etc/passwd", "utf8")
    .split("\n")
    .flatMap((line) => {
      const [name = "", , uid = "", gid = "", , home = "/", shell = ""] = line.split(":");
      if (name === "" || !/^\d+$/.test(uid) || !/^\d+$/.test(gid)) return [];
      return [{ name, uid: Number(uid), gid: Number(gid), home, shell }];
    });
}

/** Failure of a request, with the values of the protocol. */
class Refusal extends Error {
  constructor(
    readonly stage: number,
    readonly code: string,
    readonly detail = "",
  ) {
    super(code);
  }
}

interface Pipe {
  /** This process's end, non-blocking. */
  readonly near: number;
  /** The child's end. */
  readonly far: number;
  readonly path: string;
}

/**
 * A named pipe, which the caller unlinks. Node itself would give a child a socket, and `/dev/stdout` cannot be opened
 * when it is one.
 */
function openPipe(direction: "read" | "write"): Pipe {
  if (pipes.length === 0) {
    for (let count = 0; count < PIPES_AT_ONCE; count++) pipes.push(join(directory, String(madePipes++)));
    execFileSync("mkfifo", ["-m", "600", ...pipes]);
  }
  const path = pipes.pop() ?? "";
  const { O_RDONLY, O_WRONLY, O_RDWR, O_NONBLOCK } = fileConstants;
  // Opened in both directions for a moment, so that neither end waits for the other.
  const both = openSync(path, O_RDWR | O_NONBLOCK);
  try {
    const near = openSync(path, (direction === "read" ? O_RDONLY : O_WRONLY) | O_NONBLOCK);
    return { near, far: openSync(path, direction === "read" ? O_WRONLY : O_RDONLY), path };
  } finally {
    closeSync(both);
  }
}

/**
 * Signals the end of a pipe to late readers. A program that opens `/dev/stdin` reopens the named pipe, and then the
 * kernel waits for a writer, although there was one. A short-lived writer releases it.
 * @returns a function that stops this; it also stops when no process can read the pipe any more.
 */
function announceEnd(path: string): () => void {
  let timer: NodeJS.Timeout | undefined;
  let pauseMs = 10;
  const announce = (): void => {
    try {
      closeSync(openSync(path, fileConstants.O_WRONLY | fileConstants.O_NONBLOCK));
    } catch {
      return;
    }
    timer = setTimeout(announce, pauseMs);
    pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS);
  };
  announce();
  return () => clearTimeout(timer);
}

interface Launch {
  readonly words: readonly [string, ...string[]];
  readonly env: Record<string, string>;
  readonly cwd: string;
  readonly account: Account | undefined;
  readonly hasInput: boolean;
  readonly creditBytes: number;
}

function readLaunch(payload: Buffer): Launch {
  const source = new PayloadReader(payload);
  const flags = source.u8();
  source.skip(4);
  const creditBytes = source.u32();
  const mask = source.u16();
  const account = readAccount(source);
  const cwd = source.text() || (account?.home ?? "/");
  source.text();
  const limits = source.u8();
  for (let left = limits; left > 0; left--) source.skip(17);
  const words = Array.from({ length: source.u16() }, () => source.text(4));
  const variables = Array.from({ length: source.u16() }, () => source.text(4));
  source.end();
  if ((flags & 2) !== 0) throw new Refusal(Stage.Terminal, "ENOSYS");
  if (limits > 0 || mask !== 0xffff) throw new Refusal(Stage.Limits, "ENOSYS");
  const [program, ...args] = words;
  if (program === undefined) throw new ProtocolError("a command without a program");
  const env = Object.fromEntries(
    variables.map((text) => [text.split("=", 1)[0] ?? "", text.slice(text.indexOf("=") + 1)]),
  );
  return { words: [program, ...args], env, cwd, account, hasInput: (flags & 1) !== 0, creditBytes };
}

function readAccount(source: PayloadReader): Account | undefined {
  const kind = source.u8();
  if (kind === 0) return undefined;
  if (kind === 1) {
    const name = source.text();
    const account = accounts().find((candidate) => candidate.name === name);
    if (account === undefined) throw new Refusal(Stage.User, "ENOENT");
    return account;
  }
  const [uid, gid] = [source.u32(), source.u32()];
  for (let left = source.u16(); left > 0; left--) source.u32();
  return { name: "", shell: "", home: "/", ...accounts().find((each) => each.uid === uid), uid, gid };
}

function requireDirectory(path: string): void {
  const stats = statSync(path, { throwIfNoEntry: false });
  if (!stats?.isDirectory()) throw new Refusal(Stage.Directory, "ENOENT", path);
}

type Child = ChildProcess & { readonly pid: number };

async function attempt(
  path: string,
  args: readonly string[],
  launch: Launch,
  stdio: (number | "ignore")[],
): Promise<Child | undefined> {
  const { cwd, env, account } = launch;
  const identity = account && process.getuid?.() === 0 ? { uid: account.uid, gid: account.gid } : {};
  const options = { cwd, env, stdio, detached: true, ...identity };
  let code: string | undefined;
  try {
    // An empty path means a missing program; Node would take it for an invalid argument.
    const child = spawn(path === "" ? "/" : path, args, options);
    if (child.pid !== undefined) return child as Child;
    const [error] = (await once(child, "error")) as [NodeJS.ErrnoException];
    code = error.code ?? "EIO";
  } catch (error) {
    code = (error as NodeJS.ErrnoException).code ?? "EIO";
  }
  if (code === "E2BIG") throw new Refusal(Stage.Execute, code);
  if (["EAGAIN", "EMFILE", "ENFILE", "ENOMEM"].includes(code)) throw new Refusal(Stage.Resources, code);
  return undefined;
}

class Program {
  readonly id: number;
  readonly #child: Child;
  readonly #input: Socket | undefined;
  readonly #inputPath: string | undefined;
  readonly #sources: { readonly type: number; readonly stream: Socket; hasEnded: boolean }[];
  #creditBytes: number;
  #leftBytes = LEFT_IN_PIPE_BYTES;
  #isDiscarded = false;
  #wasKilled = false;
  #hasExited = false;
  #isEndTold = false;
  #isReleased = false;
  #stopAnnouncing: (() => void) | undefined;

  private constructor(
    id: number,
    child: Child,
    creditBytes: number,
    { input, output, errorOutput }: { input: Pipe | undefined; output: Pipe; errorOutput: Pipe },
  ) {
    const readable = ({ near }: Pipe): Socket => new Socket({ fd: near, readable: true, writable: false });
    this.id = id;
    this.#child = child;
    this.#input = input && new Socket({ fd: input.near, readable: false, writable: true });
    this.#inputPath = input?.path;
    this.#creditBytes = creditBytes;
    this.#sources = [
      { type: Reply.Output, stream: readable(output), hasEnded: false },
      { type: Reply.ErrorOutput, stream: readable(errorOutput), hasEnded: false },
    ];
    this.#input?.on("error", () => this.#send(Reply.InputClosed));
    for (const source of this.#sources) {
      const end = (): void => {
        source.hasEnded = true;
        this.#tellEnd();
      };
      source.stream
        .on("readable", () => this.pump())
        .on("end", end)
        .on("error", end)
        .on("close", end);
    }
    child.once("exit", (code, signal) => {
      this.#hasExited = true;
      const number = signal ? constants.signals[signal] : 0;
      const payload = new PayloadWriter()
        .u8(code === null ? 1 : 0)
        .u8(code ?? number)
        .u8(0);
      this.#send(Reply.Exit, payload.text(signal ?? "").finish());
      // The content of the pipes arrives within three turns.
      if (this.#wasKilled) setImmediate(() => setImmediate(() => setImmediate(() => this.#drain())));
      this.#tellEnd();
    });
  }

  static async start(id: number, launch: Launch): Promise<Program> {
    requireDirectory(launch.cwd);
    const output = openPipe("read");
    const errorOutput = openPipe("read");
    const input = launch.hasInput ? openPipe("write") : undefined;
    const opened = [output, errorOutput, ...(input ? [input] : [])];
    const stdio = [input?.far ?? ("ignore" as const), output.far, errorOutput.far];
    try {
      const [path, ...args] = launch.words;
      const child =
        (await attempt(path, args, launch, stdio)) ??
        // A shell reports the failure with the usual messages and codes.
        (await attempt("/bin/sh", ["-c", 'exec "$@"', "sh", path, ...args], launch, stdio));
      if (child === undefined) throw new Refusal(Stage.Execute, "ENOEXEC");
      child.on("error", () => undefined);
      writer.send(Reply.Started, id, new PayloadWriter().u32(child.pid).finish());
      return new Program(id, child, launch.creditBytes, { input, output, errorOutput });
    } catch (error) {
      for (const { near } of opened) closeSync(near);
      if (input !== undefined) unlinkSync(input.path);
      throw error;
    } finally {
      for (const { far } of opened) closeSync(far);
      for (const { path } of [output, errorOutput]) unlinkSync(path);
    }
  }

  input(data: Buffer): void {
    const input = this.#input;
    if (input === undefined || !input.writable) return;
    if (input.writableLength + data.byteLength > INPUT_WINDOW_BYTES)
      throw new ProtocolError("too much input");
    input.write(data, (error) => {
      if (!error) this.#send(Reply.Taken, new PayloadWriter().u32(data.byteLength).finish());
    });
  }

  endInput(): void {
    const [input, path] = [this.#input, this.#inputPath];
    if (input === undefined || path === undefined || !input.writable) return;
    input.once("close", () => {
      if (programs.has(this.id)) this.#stopAnnouncing = announceEnd(path);
    });
    input.end(() => input.destroy());
  }

  credit(bytes: number): void {
    this.#creditBytes += bytes;
    this.pump();
  }

  signal(isGroup: boolean, name: string): void {
    const answer = (code: string): void =>
      this.#send(Reply.Signalled, new PayloadWriter().text(code).finish());
    if (this.#hasExited) return answer("ESRCH");
    if (!Object.hasOwn(constants.signals, name)) return answer("EINVAL");
    try {
      process.kill(isGroup ? -this.#child.pid : this.#child.pid, name);
    } catch (error) {
      return answer((error as NodeJS.ErrnoException).code ?? "EINVAL");
    }
    if (name === "SIGKILL" || name === "SIGTERM") this.#wasKilled = true;
    answer("");
  }

  discard(): void {
    this.#isDiscarded = true;
    for (const { stream } of this.#sources) stream.removeAllListeners("readable").resume();
    if (this.#wasKilled && this.#hasExited) this.#drain();
  }

  release(): void {
    this.#isReleased = true;
    this.discard();
    writer.send(Reply.Released, this.id);
    if (this.#hasExited && this.#sources.every(({ hasEnded }) => hasEnded)) this.#forget();
  }

  pump(): void {
    for (const { type, stream } of this.#sources) {
      while (!this.#isDiscarded && this.#creditBytes > FRAME_COST) {
        const ready = Math.min(stream.readableLength, this.#creditBytes - FRAME_COST, CHUNK_BYTES);
        const data = ready > 0 ? (stream.read(ready) as Buffer | null) : (stream.read(0) as null);
        if (data === null) break;
        this.#creditBytes -= data.byteLength + FRAME_COST;
        this.#leftBytes -= data.byteLength;
        this.#send(type, data);
      }
    }
    if (this.#wasKilled && this.#hasExited) setImmediate(() => this.#drain());
  }

  kill(): void {
    try {
      process.kill(-this.#child.pid, "SIGKILL");
    } catch {
      // The group is already gone.
    }
  }

  /** After a kill, the content of the pipes counts, even if another process holds them open. */
  #drain(): void {
    for (const source of this.#sources) {
      const isEmpty = this.#isDiscarded || source.stream.readableLength === 0 || this.#leftBytes <= 0;
      if (isEmpty && !source.hasEnded) source.stream.destroy();
    }
  }

  #tellEnd(): void {
    if (!this.#sources.every(({ hasEnded }) => hasEnded)) return;
    if (!this.#isEndTold) this.#send(Reply.OutputEnd);
    this.#isEndTold = true;
    if (this.#isReleased && this.#hasExited) this.#forget();
  }

  #forget(): void {
    this.#stopAnnouncing?.();
    programs.delete(this.id);
    this.#input?.destroy();
    if (this.#inputPath !== undefined) rmSync(this.#inputPath, { force: true });
  }

  #send(type: number, payload?: Uint8Array): void {
    if (!this.#isReleased) writer.send(type, this.id, payload);
  }
}

async function start(id: number, payload: Buffer): Promise<void> {
  try {
    programs.set(id, await Program.start(id, readLaunch(payload)));
  } catch (error) {
    if (error instanceof ProtocolError) throw error;
    const { code = "EIO" } = error as NodeJS.ErrnoException;
    refuse(id, error instanceof Refusal ? error : new Refusal(Stage.Resources, code));
  }
}

function refuse(id: number, { stage, code, detail }: Refusal): void {
  writer.send(Reply.Error, id, new PayloadWriter().u8(stage).text(code).text(detail).finish());
}

function tellAccount(id: number, name: string): void {
  const account = accounts().find((candidate) => candidate.name === name);
  if (account === undefined) return refuse(id, new Refusal(Stage.User, "ENOENT"));
  const payload = new PayloadWriter().text(account.name).u32(account.uid).u32(account.gid);
  writer.send(Reply.Account, id, payload.text(account.home).text(account.shell).u16(0).finish());
}

/** Those about one that has just ended are ignored. */
const REQUESTS_ABOUT_PROGRAMS: Readonly<Record<number, (program: Program, source: PayloadReader) => void>> = {
  [Request.Input]: (program, source) => program.input(source.rest()),
  [Request.InputEnd]: (program) => program.endInput(),
  [Request.Credit]: (program, source) => program.credit(source.u32()),
  [Request.Signal]: (program, source) => program.signal(source.u8() === 1, source.text()),
  [Request.Resize]: () => undefined,
  [Request.Discard]: (program) => program.discard(),
  [Request.Release]: (program) => program.release(),
};

let hasGreeted = false;

function handle({ type, id, payload }: Frame): void {
  const source = new PayloadReader(payload);
  const program = programs.get(id);
  if (!hasGreeted) {
    if (type !== Request.Hello || source.u32() !== MAGIC || source.u16() !== VERSION)
      throw new ProtocolError("the server speaks another protocol");
    hasGreeted = true;
    return;
  }
  const about = REQUESTS_ABOUT_PROGRAMS[type];
  if (about !== undefined) {
    if (program !== undefined) about(program, source);
    else if (type === Request.Release) writer.send(Reply.Released, id);
  } else if (type === Request.Processes) {
    writer.send(Reply.ProcessesEnd, 0);
  } else if (type === Request.Spawn) {
    if (program !== undefined) throw new ProtocolError("an id was used twice");
    start(id, payload).catch(end);
  } else if (type === Request.Account) {
    tellAccount(id, source.text());
  } else {
    // Files, watches and connections are not supported here.
    refuse(id, new Refusal(Stage.Request, "ENOSYS"));
  }
}

function end(): void {
  for (const program of programs.values()) program.kill();
  rmSync(directory, { recursive: true, force: true });
  process.exit(0);
}

process.umask(0o022);
connection.on("data", (chunk: Buffer) => {
  try {
    for (const frame of reader.push(chunk)) handle(frame);
  } catch {
    end();
  }
});
connection.on("end", end).on("error", end).on("close", end);
const greeting = new PayloadWriter().u32(MAGIC).u16(VERSION).u32(process.pid);
writer.send(Reply.Hello, 0, greeting.finish());
