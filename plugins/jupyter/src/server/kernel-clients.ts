import { type Clock, CloseCode, type HeldMemory, type Logger, messageOf } from "@coppice/core";
import type { ChannelName } from "../transport/kernel-channels.js";
import type { ClientFrame } from "./client-frame.js";
import { ClientSession, type ClientSocket } from "./client-session.js";
import type { CodeContext, ContextObserver } from "../contexts/code-context.js";
import { executionStateOf } from "../kernel/kernel-request.js";
import type { JupyterServerSettings } from "./jupyter-server-config.js";
import type { Kernel } from "../kernel/kernel.js";
import { sharedFrameOf, syntheticFrame, type SharedFrame } from "./server-frame.js";
import { type KernelMessage, sizeOf } from "../transport/wire.js";

type ExecutionState = "starting" | "idle" | "busy" | "restarting" | "dead";

export interface KernelClientsOptions {
  /** Opens what the clients of one kernel hold. */
  readonly hold: (giveUp: () => void) => HeldMemory;
  readonly settings: JupyterServerSettings;
  readonly clock: Clock;
  readonly log: Logger;
}

interface Pending {
  readonly session: ClientSession;
  readonly channel: "shell" | "control";
  readonly type: string;
  readonly header: Buffer;
  readonly sizeBytes: number;
}

interface Waiting {
  readonly frame: ClientFrame;
  readonly pending: Pending;
}

/** Age from which a kernel counts as stable: a later death is a new failure. */
const STABLE_MS = 10_000;
/** Number of ended requests that are remembered for late answers. */
const REMEMBERED_REQUESTS = 1000;
/** A kernel may report any number of busy requests. */
const MAX_BUSY = 1000;
const REQUEST_CHANNELS: ReadonlySet<string> = new Set(["shell", "control"]);

/**
 * The clients of one context's kernel: one set of sockets to the kernel for any number of clients. Published messages
 * go to all of them, an answer to its requester.
 */
export class KernelClients implements ContextObserver {
  readonly #context: Pick<CodeContext, "ready" | "restart">;
  readonly #options: KernelClientsOptions;
  readonly #sessions = new Map<string, ClientSession>();
  readonly #pending = new Map<string, Pending>();
  /** Sessions of requests that have ended, oldest first. */
  readonly #ended = new Map<string, ClientSession>();
  readonly #busy = new Set<string>();
  readonly #held: HeldMemory;
  /** Of what waits for the kernel's start. */
  #place: ReturnType<HeldMemory["place"]>;
  /** Requests that wait for the kernel's start. */
  #waiting: Waiting[] = [];
  #waitingBytes = 0;
  #kernel: Kernel | undefined;
  #state: ExecutionState = "starting";
  #kernelSession = "";
  #startedAtMs = 0;
  #failures = 0;
  /** Milliseconds since the Unix epoch. */
  lastActivityMs: number;
  #isRemoved = false;

  constructor(context: Pick<CodeContext, "watch" | "ready" | "restart">, options: KernelClientsOptions) {
    this.#context = context;
    this.#options = options;
    this.#held = options.hold(() => this.#giveUp());
    this.#place = this.#held.place();
    this.lastActivityMs = options.clock.now();
    context.watch(this);
  }

  get state(): ExecutionState {
    return this.#state === "idle" && this.#busy.size > 0 ? "busy" : this.#state;
  }

  get connections(): number {
    return [...this.#sessions.values()].filter(({ isConnected }) => isConnected).length;
  }

  hasRoomFor(sessionId: string): boolean {
    return this.#sessions.has(sessionId) || this.connections < this.#options.settings.maxClients;
  }

  /** Attaches a connection; a reconnecting client gets missed messages. Starts the kernel if there is none. */
  connect(sessionId: string, socket: ClientSocket): ClientSession {
    let session = this.#sessions.get(sessionId);
    if (session === undefined) {
      this.#makeRoom();
      session = new ClientSession(sessionId, this.#options.settings.maxReplay, this.#held.place());
      this.#sessions.set(sessionId, session);
    }
    session.cancelForget();
    session.connect(socket);
    if (this.#state !== "dead") this.#wake();
    return session;
  }

  /** Counts what waits for a client's connection. */
  place(): ReturnType<HeldMemory["place"]> {
    return this.#held.place();
  }

  /** Detaches a connection; a client with a session id may reconnect for a while. */
  disconnect(session: ClientSession, socket: ClientSocket, mayReturn: boolean): void {
    if (!session.disconnect(socket)) return;
    if (this.#sessions.get(session.id) !== session || !mayReturn) this.#forget(session);
    else {
      session.cancelForget = this.#options.clock.after(this.#options.settings.replay, () =>
        this.#forget(session),
      );
    }
  }

  /** Forwards a message; drops unrequested input, an unknown channel, the id of a running request. */
  accept(session: ClientSession, frame: ClientFrame): void {
    this.lastActivityMs = this.#options.clock.now();
    const { channel } = frame;
    if (channel === "stdin") {
      if (!session.isAskedForInput || frame.type !== "input_reply") return;
      session.isAskedForInput = false;
      this.#send(channel, frame);
    } else if (REQUEST_CHANNELS.has(channel)) this.#request(channel as "shell" | "control", session, frame);
  }

  /** @throws the errors of `CodeContext.restart`; the state is `dead` then. */
  async restart(): Promise<void> {
    this.#failures = 0;
    try {
      await this.#context.restart();
    } catch (error) {
      this.#die(error);
      throw error;
    }
  }

  async interrupt(): Promise<void> {
    await this.#kernel?.interrupt();
  }

  received(channel: ChannelName, message: KernelMessage): Promise<void> | undefined {
    this.lastActivityMs = this.#options.clock.now();
    this.#kernelSession = message.session ?? "";
    // Only for the subscriber, which is the server.
    if (message.type === "iopub_welcome") return undefined;
    if (channel === "iopub") return this.#published(message);
    const owner = this.#ownerOf(message.parentId);
    if (channel === "stdin") {
      if (message.type !== "input_request") return undefined;
      if (owner === undefined) {
        // The answer will never come, and the kernel would wait for it.
        void this.interrupt();
        return undefined;
      }
      owner.isAskedForInput = true;
    }
    if (owner === undefined) return undefined;
    const frame = sharedFrameOf(channel, message);
    if (frame === undefined) return undefined;
    if (channel !== "stdin" && message.parentId !== undefined) this.#settle(message.parentId);
    return this.#deliver(owner, frame, true);
  }

  starting(): void {
    if (this.#state !== "restarting") this.#state = "starting";
  }

  started(kernel: Kernel): void {
    if (this.#kernel === kernel || !kernel.isUsable || this.#isRemoved) return;
    if (this.#kernel !== undefined) {
      // An ending kernel's successor exists before it is gone. Waiting requests are for the new one.
      const waiting = this.#waiting.filter(({ frame }) => this.#pending.has(frame.id));
      this.#restartingFrom();
      for (const { frame, pending } of waiting) this.#count(frame.id, pending);
      this.#wait(waiting);
    }
    this.#kernel = kernel;
    this.#state = "idle";
    this.#startedAtMs = this.#options.clock.now();
    void kernel.gone.then(() => this.#gone(kernel));
    const waiting = this.#waiting;
    this.#wait([]);
    for (const { frame, pending } of waiting) this.#send(pending.channel, frame);
  }

  // Clients see the kernel's own messages of a restart, but no `restarting` status, which stands for a kernel that
  // died: JupyterLab would reconnect for it and again for its requested restart.
  restarting(): void {
    this.#kernel = undefined;
    for (const pending of this.#pending.values()) this.#abort(pending);
    this.#dropRequests();
    this.#state = "restarting";
    this.#say("shutdown_reply", { status: "ok", restart: true });
  }

  removed(): void {
    if (this.#isRemoved) return;
    this.#isRemoved = true;
    this.#kernel = undefined;
    this.#state = "dead";
    this.#dropRequests();
    this.#say("status", { execution_state: "dead" });
    for (const session of this.#sessions.values()) {
      session.cancelForget();
      session.close(CloseCode.Normal, "the kernel was removed");
    }
    this.#sessions.clear();
  }

  #request(channel: "shell" | "control", session: ClientSession, frame: ClientFrame): void {
    const { maxPending, maxPendingBytes } = this.#options.settings;
    if (this.#pending.has(frame.id) || this.#state === "dead") return;
    const { header, metadata, content, buffers } = frame;
    const sizeBytes = sizeOf([header, metadata, content, ...buffers]);
    if (session.pendingRequests >= maxPending || session.pendingBytes + sizeBytes > maxPendingBytes) {
      session.close(CloseCode.TryAgain, "too many requests without an answer");
      return;
    }
    // A copy: the frame shares the memory of everything that arrived with it.
    const pending = { session, channel, type: frame.type, header: Buffer.from(header), sizeBytes };
    this.#count(frame.id, pending);
    if (this.#kernel?.isUsable === true) this.#send(channel, frame);
    else {
      this.#waiting.push({ frame, pending });
      this.#waitingBytes += sizeBytes;
      this.#place.resize(this.#waitingBytes);
      this.#wake();
    }
  }

  #count(id: string, pending: Pending): void {
    this.#pending.set(id, pending);
    pending.session.pendingRequests++;
    pending.session.pendingBytes += pending.sizeBytes;
  }

  #send(channel: Exclude<ChannelName, "iopub">, frame: ClientFrame): void {
    this.#kernel?.forward(channel, frame).catch((error: unknown) => {
      this.#options.log.debug({ err: error }, "a client's message was not passed on");
      this.#settle(frame.id);
    });
  }

  #published(message: KernelMessage): Promise<void> | undefined {
    const { parentId } = message;
    const frame = sharedFrameOf("iopub", message);
    if (frame === undefined) {
      this.#options.log.debug("kernel published what is no JSON");
      return undefined;
    }
    const owner = this.#ownerOf(parentId);
    if (parentId !== undefined) {
      const state = executionStateOf(message);
      if (state === "busy" && this.#busy.size < MAX_BUSY) this.#busy.add(parentId);
      else if (state === "idle") {
        this.#busy.delete(parentId);
        this.#settle(parentId);
      }
    }
    return this.#broadcast(frame, owner);
  }

  /** Answers a request that no kernel will answer any more. */
  #abort({ session, channel, type, header: parentHeader }: Pending): void {
    const parts = { session: this.#kernelSession, parentHeader };
    if (type.endsWith("_request")) {
      const reply = type.replace(/request$/, "reply");
      void this.#deliver(
        session,
        syntheticFrame({ ...parts, channel, type: reply, content: { status: "aborted" } }),
        true,
      );
    }
    const content = { execution_state: "idle" };
    void this.#broadcast(syntheticFrame({ ...parts, type: "status", content }), session);
  }

  #say(type: "status" | "stream" | "shutdown_reply", content: object): void {
    // No backpressure here: the return value is ignored.
    void this.#broadcast(syntheticFrame({ type, content, session: this.#kernelSession }), undefined);
  }

  #broadcast(frame: SharedFrame, owner: ClientSession | undefined): Promise<void> | undefined {
    const waits: Promise<void>[] = [];
    for (const session of this.#sessions.values()) {
      const wait = this.#deliver(session, frame, session === owner);
      if (wait !== undefined) waits.push(wait);
    }
    return waits.length === 0 ? undefined : Promise.all(waits).then(() => undefined);
  }

  #deliver(session: ClientSession, frame: SharedFrame, isOwn: boolean): Promise<void> | undefined {
    const outcome = session.deliver(frame, isOwn);
    if (outcome !== "lost") return outcome;
    this.#forget(session);
    return undefined;
  }

  #ownerOf(requestId: string | undefined): ClientSession | undefined {
    if (requestId === undefined) return undefined;
    return this.#pending.get(requestId)?.session ?? this.#ended.get(requestId);
  }

  /** Marks a request as answered: it no longer counts, but late messages still find its client. */
  #settle(requestId: string): void {
    const pending = this.#pending.get(requestId);
    if (pending === undefined) return;
    this.#pending.delete(requestId);
    pending.session.pendingRequests--;
    pending.session.pendingBytes -= pending.sizeBytes;
    this.#ended.set(requestId, pending.session);
    if (this.#ended.size <= REMEMBERED_REQUESTS) return;
    const [oldest] = this.#ended.keys();
    if (oldest !== undefined) this.#ended.delete(oldest);
  }

  #wait(waiting: Waiting[]): void {
    this.#waiting = waiting;
    this.#waitingBytes = waiting.reduce((sum, { pending }) => sum + pending.sizeBytes, 0);
    this.#place.resize(this.#waitingBytes);
  }

  #giveUp(): void {
    this.#options.log.warn("clients for whom most of jupyter.maxHeldMessages waits are disconnected");
    this.#place = this.#held.place();
    for (const session of this.#sessions.values()) {
      session.close(CloseCode.TryAgain, "too much waits for the clients of this kernel");
      this.#forget(session);
    }
  }

  #forget(session: ClientSession): void {
    session.cancelForget();
    session.drop();
    if (this.#sessions.get(session.id) !== session) return;
    this.#sessions.delete(session.id);
    for (const [id, pending] of this.#pending) if (pending.session === session) this.#pending.delete(id);
    for (const [id, ended] of this.#ended) if (ended === session) this.#ended.delete(id);
    this.#wait(this.#waiting.filter(({ frame }) => this.#pending.has(frame.id)));
    if (session.isAskedForInput) void this.interrupt();
  }

  #makeRoom(): void {
    if (this.#sessions.size < this.#options.settings.maxClients) return;
    const away = [...this.#sessions.values()].find(({ isConnected }) => !isConnected);
    if (away !== undefined) this.#forget(away);
  }

  #wake(): void {
    if (this.#isRemoved || this.#kernel?.isUsable === true) return;
    this.#context.ready().catch((error: unknown) => this.#die(error));
  }

  #gone(kernel: Kernel): void {
    if (this.#kernel !== kernel) return;
    this.#kernel = undefined;
    if (this.#isRemoved) return;
    const { clock, settings } = this.#options;
    const isStable = clock.now() - this.#startedAtMs >= STABLE_MS;
    this.#failures = isStable ? 1 : this.#failures + 1;
    if (this.#sessions.size === 0) {
      // The next use starts it.
      this.#dropRequests();
      this.#state = "starting";
    } else if (this.#failures > settings.maxRestarts) {
      this.#die(new Error(`the kernel died ${this.#failures} times in a row`));
    } else {
      this.#restartingFrom();
      this.#wake();
    }
  }

  #restartingFrom(): void {
    this.#dropRequests();
    this.#state = "restarting";
    this.#say("status", { execution_state: "restarting" });
  }

  #die(reason: unknown): void {
    if (this.#isRemoved || this.#state === "dead" || this.#kernel?.isUsable === true) return;
    this.#options.log.warn({ reason: messageOf(reason) }, "kernel stays down");
    this.#dropRequests();
    this.#state = "dead";
    const text = `\n[the kernel is dead: ${messageOf(reason)}]\n`;
    this.#say("stream", { name: "stderr", text });
    this.#say("status", { execution_state: "dead" });
  }

  /** Aborts the last kernel's unanswered requests. */
  #dropRequests(): void {
    this.#pending.clear();
    this.#ended.clear();
    this.#busy.clear();
    this.#wait([]);
    for (const session of this.#sessions.values()) {
      session.pendingRequests = 0;
      session.pendingBytes = 0;
      session.isAskedForInput = false;
    }
  }
}
