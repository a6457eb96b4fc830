import type { Duplex } from "node:stream";
import { isTurnOver, messageOf, ReadsInTurns, releaseMemory } from "@coppice/core";
import { SandboxError, type User } from "@coppice/core/backend";
import { readFailure } from "./wire/answers.js";
import { AgentDial, DIAL_WINDOW_BYTES } from "./agent-dial.js";
import { AgentFiles, type AgentFilesOptions, type Expected } from "./files/agent-files.js";
import { AgentProcess, type ProcessFacts, KEPT_WINDOW_BYTES, OUTPUT_WINDOW_BYTES } from "./agent-process.js";
import type { ProcessDescriptors } from "./built/agent-binary.js";
import { readInto } from "./connect-socket.js";
import {
  type Channel,
  type Link,
  Feature,
  type Frame,
  INPUT_WINDOW_BYTES,
  MAGIC,
  PayloadReader,
  PayloadWriter,
  ProtocolError,
  Reply,
  Request,
  VERSION,
  readWhole,
} from "./wire/frames.js";
import { FrameReader } from "./wire/frame-reader.js";
import { FrameWriter } from "./wire/frame-writer.js";
import { type SpawnRequest, spawnError, writeSpawnRequest } from "./wire/spawn-request.js";

export interface AgentConnectionOptions extends AgentFilesOptions {
  /** Timeout of the greeting. 5 000 when absent. */
  readonly greetingTimeoutMs?: number | undefined;
  /**
   * Called when the stream has ended, and has to end the processes of the connection: they are reported as killed
   * after it. Without this option they are reported as killed at once if the connection was lost, and not at all if it
   * was closed.
   */
  readonly onEnd?: (() => Promise<void>) | undefined;
  /** Refers to the process of the agent, where it is one of this host. Called once, when a descriptor is handed over. */
  readonly openPeer?: (() => Promise<ProcessDescriptors | undefined>) | undefined;
  readonly afterClose?: (() => Promise<void>) | undefined;
}

const GREETING_TIMEOUT_MS = 5_000;
const CLOSE_TIMEOUT_MS = 1_000;
const END_TIMEOUT_MS = 5_000;
const MAX_ADOPTED = 8_192;
const MAX_LABEL = 4_095;
const PID_BYTES = 4;
const ACCOUNT_KEPT_MS = 1_000;
const ACCOUNTS_KEPT = 64;
const LAST_ID = 0xffff_ffff;
/** An agent confirms each release at once. */
const MAX_RELEASED = 16_384;
/** Frames between two looks at the time. */
const FRAMES_AT_ONCE = 16;

/**
 * A server's connection to an agent. The agent is taken for hostile: a frame that breaks the protocol ends only this
 * connection, and rejects its pending promises with SandboxError `unavailable`.
 */
export class AgentConnection {
  readonly files: AgentFiles;
  /** Settles when the stream has ended, for any reason, and `onEnd` with it. Never rejects. */
  readonly closed: Promise<void>;
  /** Adds to the exit of a process what is known about its reason: see `ProcessFacts.explain`. */
  explain: ProcessFacts["explain"];
  readonly #stream: Duplex;
  readonly #options: AgentConnectionOptions;
  readonly #writer: FrameWriter;
  readonly #reader = new FrameReader();
  readonly #channels = new Map<number, Channel>();
  /** Released ids, for which frames of the agent may still arrive. */
  readonly #released = new Set<number>();
  readonly #adopted: AgentProcess[] = [];
  readonly #accounts = new Map<string, { readonly account: User; readonly atMs: number }>();
  readonly #greeting = Promise.withResolvers<void>();
  readonly #explain: ProcessFacts["explain"] = (exit, sinceMs) => this.explain?.(exit, sinceMs) ?? exit;
  #hasGreeted = false;
  #canShare = false;
  #peer: Promise<ProcessDescriptors | undefined> | undefined;
  #isReady = false;
  #nextId = 1;
  #end: SandboxError | undefined;

  private constructor(stream: Duplex, options: AgentConnectionOptions) {
    this.#stream = stream;
    this.#options = options;
    this.#writer = new FrameWriter(stream);
    this.files = new AgentFiles(
      {
        open: (type, payload, create) => this.#open(type, payload, create),
        ask: (type, payload, expected) => this.#ask(type, payload, expected),
        begin: (type, payload, expected, create) => this.#begin(type, payload, expected, create),
      },
      options,
    );
    const closed = Promise.withResolvers<void>();
    const reads = new ReadsInTurns({
      sender: this,
      source: stream,
      read: (chunk) => this.#read(chunk),
      onEnd: closed.resolve,
      isReused: true,
    });
    this.closed = closed.promise.then(async () => {
      this.#lose(unavailable("the agent is gone"));
      (await this.#peer)?.close();
      if (this.#isReady) await options.onEnd?.();
    });
    stream.once("close", () => reads.end());
    stream.on("error", (error) => this.#lose(unavailable("the agent is gone", error)));
    // The agent has ended its side, and half a connection is of no use.
    stream.on("end", () => stream.destroy());
    const isInPlace = readInto(stream, () => (reads.isHeld ? undefined : this.#reader.destination()));
    stream.on("data", (chunk: Buffer) => {
      reads.receive(chunk);
      if (!isInPlace) releaseMemory(chunk);
    });
    stream.resume();
  }

  /**
   * Greets an agent and receives its list of processes.
   * @param stream connected to the agent. The connection takes ownership of it and of the buffers it yields.
   * @throws SandboxError unavailable when the agent does not answer in time or speaks another protocol.
   */
  static async open(stream: Duplex, options: AgentConnectionOptions = {}): Promise<AgentConnection> {
    const connection = new AgentConnection(stream, options);
    connection.#writer.send(Request.Hello, 0, new PayloadWriter().u32(MAGIC).u16(VERSION).finish());
    connection.#writer.send(Request.Processes, 0);
    const timeoutMs = options.greetingTimeoutMs ?? GREETING_TIMEOUT_MS;
    const timer = setTimeout(() => {
      connection.#lose(unavailable(`the agent did not answer within ${timeoutMs} ms`));
    }, timeoutMs);
    try {
      await connection.#greeting.promise;
    } finally {
      clearTimeout(timer);
    }
    return connection;
  }

  /** Starts a program. @throws SandboxError as `Sandbox.spawn`, and failed_precondition when there are no terminals. */
  async spawn(request: SpawnRequest): Promise<AgentProcess> {
    const named: SpawnRequest = { ...request, user: request.user ?? this.#options.defaultUser };
    const grantedBytes = named.keepsOutput === true ? KEPT_WINDOW_BYTES : OUTPUT_WINDOW_BYTES;
    const started: Expected<number> = {
      type: Reply.Started,
      read: (reader) => reader.u32(),
      errorOf: (failure) => spawnError(failure, named),
    };
    const facts = {
      hasInput: request.input !== "none" || request.terminal !== undefined,
      hasTerminal: request.terminal !== undefined,
      label: request.label ?? "",
      grantedBytes,
      inputWindowBytes: INPUT_WINDOW_BYTES,
      explain: this.#explain,
      ...(named.keepsOutput === true && { keptFrom: 0 }),
    };
    const payload = writeSpawnRequest(named, grantedBytes);
    return this.#begin(
      Request.Spawn,
      payload,
      started,
      (link, pid) => new AgentProcess(link, { pid, ...facts }),
    );
  }

  /**
   * Processes that the agent had when this connection opened, oldest first: running ones, and those that ended without
   * a connection. Their output is not consumed before it is read.
   */
  async processes(): Promise<readonly AgentProcess[]> {
    return this.#adopted;
  }

  /**
   * Looks up an account in the sandbox's passwd, unless it did so within a second: nearly every request asks for the
   * same one, and the agent looks again where it acts for it. @throws SandboxError not_found `unknown user <name>`.
   */
  async user(name?: string): Promise<User> {
    const wanted =
      name ?? (typeof this.#options.defaultUser === "string" ? this.#options.defaultUser : "root");
    const unknown = (cause?: unknown): SandboxError =>
      new SandboxError("account_not_found", `unknown user ${wanted}`, { cause });
    if (wanted.includes("\0") || Buffer.byteLength(wanted) > 255) throw unknown();
    const nowMs = performance.now();
    const known = this.#accounts.get(wanted);
    const isFresh = this.#end === undefined && known !== undefined && nowMs - known.atMs < ACCOUNT_KEPT_MS;
    if (isFresh) return known.account;
    const found = await this.#ask<User>(Request.Account, new PayloadWriter().text(wanted).finish(), {
      type: Reply.Account,
      read: (reader) => {
        const account = {
          name: reader.text(),
          uid: reader.u32(),
          gid: reader.u32(),
          home: reader.text(),
          shell: reader.text(),
        };
        // Skips supplementary groups.
        for (let left = reader.u16(); left > 0; left--) reader.u32();
        return account;
      },
      errorOf: unknown,
    });
    if (this.#accounts.size === ACCOUNTS_KEPT) this.#accounts.clear();
    this.#accounts.set(wanted, { account: found, atMs: nowMs });
    return found;
  }

  /**
   * Opens a TCP connection to a port inside, on any of its loopback addresses.
   * @throws SandboxError failed_precondition when no process listens there, or the signal's reason.
   */
  async dial(port: number, signal: AbortSignal): Promise<Duplex> {
    signal.throwIfAborted();
    if (!Number.isInteger(port) || port < 1 || port > 65_535)
      throw new SandboxError("port_invalid", `${port} is no port`);
    const payload = new PayloadWriter().u16(port).u32(DIAL_WINDOW_BYTES).finish();
    const connected: Expected<void> = {
      type: Reply.Done,
      read: () => undefined,
      errorOf: (cause) =>
        new SandboxError("port_closed", `cannot connect to port ${port}: ${cause.code}`, { cause }),
    };
    return this.#begin(Request.Dial, payload, connected, (link) => new AgentDial(link), signal);
  }

  /** True once it is closed or lost. No further events of processes arrive. */
  get isOver(): boolean {
    return this.#end !== undefined;
  }

  /**
   * Disconnects. An agent that was started for this connection ends with everything it started; a listening agent and
   * its processes go on.
   */
  async close(): Promise<void> {
    this.#writer.flush();
    this.#lose(new SandboxError("connection_closed", "the connection to the agent was closed"), true);
    await this.closed;
    await this.#options.afterClose?.();
  }

  /** Ends the agent and everything it started. @throws SandboxError unavailable when it does not end in time. */
  async end(): Promise<void> {
    if (this.#end === undefined) this.#writer.send(Request.End, 0);
    const late = unavailable(`the agent did not end within ${END_TIMEOUT_MS} ms`);
    const timer = setTimeout(() => this.#lose(late), END_TIMEOUT_MS);
    await this.closed;
    clearTimeout(timer);
    if (this.#end === late) throw late;
  }

  #open<C extends Channel>(type: number, payload: Uint8Array, create: (link: Link) => C): C {
    if (this.#end !== undefined) throw this.#end;
    const id = this.#takeId();
    const channel = create(this.#link(id));
    this.#channels.set(id, channel);
    this.#writer.send(type, id, payload);
    return channel;
  }

  async #ask<T>(type: number, payload: Uint8Array, expected: Expected<T>): Promise<T> {
    return this.#request(type, payload, expected, (answer) => answer);
  }

  /** As `#ask`; then the channel that `create` makes of the answer receives the frames. */
  async #begin<T, C extends Channel>(
    type: number,
    payload: Uint8Array,
    expected: Expected<T>,
    create: (link: Link, answer: T) => C,
    signal?: AbortSignal,
  ): Promise<C> {
    const begin = (answer: T, link: Link): C => {
      const channel = create(link, answer);
      this.#channels.set(link.id, channel);
      return channel;
    };
    return this.#request(type, payload, expected, begin, signal);
  }

  /** @throws the signal's reason; then the agent stops what it began. */
  async #request<T, R>(
    type: number,
    payload: Uint8Array,
    expected: Expected<T>,
    use: (answer: T, link: Link) => R,
    signal?: AbortSignal,
  ): Promise<R> {
    const { promise, resolve, reject } = Promise.withResolvers<R>();
    this.#open(type, payload, (link) => {
      const abandon = (): void => {
        link.release();
        reject(signal?.reason);
      };
      const settle = (): void => {
        this.#channels.delete(link.id);
        signal?.removeEventListener("abort", abandon);
      };
      signal?.addEventListener("abort", abandon, { once: true });
      return {
        // Read on arrival, because a malformed answer ends the connection, not only this request.
        receive: (reply, answer) => {
          if (reply === Reply.Error) {
            const failure = readFailure(answer);
            settle();
            reject(expected.errorOf(failure));
          } else if (reply === expected.type) {
            const value = readWhole(answer, expected.read);
            settle();
            resolve(use(value, link));
          } else throw new ProtocolError(`frame ${reply} for a request`);
        },
        lost: (reason) => {
          settle();
          reject(reason);
        },
      };
    });
    return promise;
  }

  #link(id: number): Link {
    let isOpen = true;
    const canShare = (): boolean => isOpen && this.#canShare;
    return {
      id,
      connection: this,
      get canShare() {
        return canShare();
      },
      takeDescriptor: (descriptor) => this.#takeDescriptor(descriptor),
      send: (type, payload) => {
        if (isOpen && this.#end === undefined) this.#writer.send(type, id, payload);
      },
      release: () => {
        if (!isOpen || this.#end !== undefined) return;
        isOpen = false;
        this.#channels.delete(id);
        this.#released.add(id);
        if (this.#released.size > MAX_RELEASED)
          this.#lose(unavailable("the agent does not confirm that it released what it was asked to"));
        this.#writer.sendLater(Request.Release, id);
      },
    };
  }

  async #takeDescriptor(descriptor: number): Promise<number | undefined> {
    this.#peer ??= Promise.resolve(this.#options.openPeer?.()).catch(() => undefined);
    const peer = await this.#peer;
    const taken = this.#end === undefined ? peer?.take(descriptor) : undefined;
    // What the system forbids once it forbids again.
    if (taken === undefined) this.#canShare = false;
    return taken;
  }

  #takeId(): number {
    while (this.#nextId > LAST_ID || this.#channels.has(this.#nextId) || this.#released.has(this.#nextId))
      this.#nextId = this.#nextId >= LAST_ID ? 1 : this.#nextId + 1;
    return this.#nextId++;
  }

  #read(chunk: Buffer): number {
    let frames = 0;
    try {
      for (const frame of this.#reader.push(chunk)) {
        if (this.#end !== undefined) return 0;
        this.#handle(frame);
        frames += 1;
        if (frames % FRAMES_AT_ONCE === 0 && isTurnOver()) break;
      }
      return this.#reader.unread(chunk).byteLength;
    } catch (error) {
      this.#lose(unavailable(`the agent broke the protocol: ${messageOf(error)}`, error));
      return 0;
    }
  }

  #handle({ type, id, payload }: Frame): void {
    if (!this.#isReady) {
      this.#greet(type, id, payload);
      return;
    }
    const channel = this.#channels.get(id);
    if (channel !== undefined) {
      channel.receive(type, payload);
    } else if (!this.#released.has(id)) {
      throw new ProtocolError(`frame ${type} for an unknown id`);
    } else if (type === Reply.Released) {
      this.#released.delete(id);
    }
  }

  #greet(type: number, id: number, payload: Buffer): void {
    const reader = new PayloadReader(payload);
    if (!this.#hasGreeted) {
      if (type !== Reply.Hello || id !== 0 || reader.u32() !== MAGIC) throw new ProtocolError("no greeting");
      const version = reader.u16();
      if (version !== VERSION) throw new ProtocolError(`version ${version}, not ${VERSION}`);
      reader.skip(PID_BYTES);
      // Absent in greetings of older agents, which this server may find.
      const features = reader.isAtEnd ? 0 : reader.u32();
      this.#canShare = this.#options.openPeer !== undefined && (features & Feature.Share) !== 0;
      this.#hasGreeted = true;
    } else if (type === Reply.Process && id !== 0) {
      this.#adopt(id, reader);
    } else if (type === Reply.ProcessesEnd && id === 0) {
      reader.end();
      this.#adopted.reverse();
      this.#isReady = true;
      this.#greeting.resolve();
    } else {
      // An ended process reports its end right after it is named.
      const channel = this.#channels.get(id);
      if (channel === undefined) throw new ProtocolError(`frame ${type} in place of a greeting`);
      channel.receive(type, payload);
    }
  }

  #adopt(id: number, reader: PayloadReader): void {
    if (this.#channels.has(id) || this.#adopted.length >= MAX_ADOPTED)
      throw new ProtocolError("a process that was named before");
    const pid = reader.u32();
    const flags = reader.u8();
    const inputWindowBytes = reader.u32();
    const label = reader.text();
    if (label.length > MAX_LABEL) throw new ProtocolError("a label that no server has given");
    const keptFrom = (flags & 16) === 0 ? undefined : reader.u64();
    if (keptFrom !== undefined && !Number.isSafeInteger(keptFrom))
      throw new ProtocolError("an impossible offset");
    reader.end();
    const process = new AgentProcess(this.#link(id), {
      pid,
      hasInput: (flags & 1) !== 0,
      hasTerminal: (flags & 2) !== 0,
      label,
      grantedBytes: 0,
      inputWindowBytes,
      keptFrom,
      explain: this.#explain,
    });
    this.#channels.set(id, process);
    this.#adopted.push(process);
    this.#nextId = Math.max(this.#nextId, id + 1);
  }

  #lose(reason: SandboxError, isGraceful = false): void {
    if (this.#end !== undefined) return;
    this.#end = reason;
    this.#greeting.promise.catch(() => undefined);
    this.#greeting.reject(reason);
    for (const channel of this.#channels.values()) channel.lost(reason, this.#options.onEnd && this.closed);
    this.#channels.clear();
    this.#released.clear();
    if (!isGraceful) {
      this.#stream.destroy();
      return;
    }
    // Does not wait longer for an agent that does not read.
    const timer = setTimeout(() => this.#stream.destroy(), CLOSE_TIMEOUT_MS);
    this.#stream.once("close", () => clearTimeout(timer));
    this.#stream.end(() => this.#stream.destroy());
  }
}

function unavailable(message: string, cause?: unknown): SandboxError {
  return new SandboxError("agent_unavailable", message, { cause });
}
