import { setTimeout as delay } from "node:timers/promises";
import {
  fulfilledWithin,
  isTurnOver,
  laterTurn,
  type Logger,
  releaseMemory,
  SandboxError,
  systemClock,
  unlessAborted,
} from "@coppice/core";
import { type Process, shortageText } from "@coppice/core/backend";
import { eventOf, noteEvent, type ErrorEvent, type ExecutionEvent } from "./execution-event.js";
import {
  asksToExit,
  errorOf,
  executionStateOf,
  isAborted,
  KernelRequest,
  replyContent,
  type RequestEnd,
} from "./kernel-request.js";
import { Heartbeat } from "../transport/heartbeat.js";
import type { ChannelName, KernelChannels } from "../transport/kernel-channels.js";
import type { KernelConnection } from "./kernel-notes.js";
import { type KernelProcess, killProgram, withOutput } from "../programs/kernel-process.js";
import { isInstalled, type InstalledKernel } from "../programs/kernel-program.js";
import type { KernelObserver, KernelSettings, KernelSurroundings } from "./kernel-surroundings.js";
import {
  decodeMessage,
  encodeMessage,
  signedFrames,
  type KernelMessage,
  type MessageParts,
} from "../transport/wire.js";
import { REASONS } from "../reasons.js";

export interface KernelExecution {
  readonly code: string;
  /** Set in the process's environment while this code runs. */
  readonly variables: Readonly<Record<string, string>>;
}

const FIRST_NUDGE_MS = 25;
const MAX_NUDGE_MS = 200;
/** Time after which a reply without an idle, or an idle without a reply, ends a request if iopub is quiet. */
const MISSING_HALF_MS = 5000;
/** Time of silence on iopub after the process's end that shows that all its messages have arrived. */
const LAST_MESSAGES_MS = 50;
const SHUTDOWN_GRACE_MS = 1000;
/** Time after a lost connection in which the end of the kernel's process counts as its reason. */
const LOST_GRACE_MS = 500;
const ANSWER_MS = 5000;
/** Content of every execute_request, beside its code. */
const NOTHING_ELSE = { user_expressions: {}, allow_stdin: false, stop_on_error: false };
const FIRST_REPEAT_MS = 250;
const REPEAT_INTERRUPT_MS = 1000;
/** A kernel may report any number of busy requests. */
const MAX_OTHERS = 1000;
/** An aborted request never ran, so it may be sent again; some kernels abort everything for 200 ms after an error. */
const ABORTED_WAITS_MS = [0, 100, 200, 400];

/** One kernel process and the connection to it, from ready to gone. */
export class Kernel {
  /** Settles when its process has ended and all its messages are handled. */
  readonly gone: Promise<void>;
  /** For the server that adopts it. */
  readonly connection: KernelConnection;
  readonly #process: Process;
  /** Undefined for a kernel of ours. */
  readonly #interruptMode: InstalledKernel["interruptMode"] | undefined;
  readonly #outputTail: () => string;
  readonly #channels: KernelChannels;
  readonly #settings: KernelSettings;
  readonly #log: Logger;
  readonly #observer: () => KernelObserver | undefined;
  #heartbeat: Heartbeat | undefined;
  readonly #requests = new Map<string, KernelRequest>();
  /** Requests of other clients that the kernel is busy with. */
  readonly #others = new Set<string>();
  readonly #ready = Promise.withResolvers<void>();
  #hasReplied = false;
  #hasPublished = false;
  #isPublishing = false;
  #lastIopubMs = 0;
  #isLeaving = false;
  #hasExited = false;
  /** What its sandbox lacked when it ended. */
  #lacked = "";

  /** Connects and waits until the kernel answers. @throws SandboxError failed_precondition; it is killed then. */
  static async connect(
    surroundings: KernelSurroundings,
    started: KernelProcess,
    connection: KernelConnection,
  ): Promise<Kernel> {
    let kernel: Kernel;
    try {
      kernel = new Kernel(surroundings, started, connection);
    } catch (error) {
      await killProgram(started.process);
      throw error;
    }
    try {
      await kernel.#becomeReady(surroundings.signal);
      kernel.#listenToHeart(surroundings);
      return kernel;
    } catch (error) {
      await kernel.kill();
      throw withOutput(error, started.outputTail());
    }
  }

  private constructor(
    { sandbox, tenant, program, settings, log, observer = () => undefined }: KernelSurroundings,
    { process, outputTail }: KernelProcess,
    connection: KernelConnection,
  ) {
    this.connection = connection;
    this.#process = process;
    this.#interruptMode = isInstalled(program) ? program.interruptMode : undefined;
    this.#outputTail = outputTail;
    this.#settings = settings;
    this.#log = log;
    this.#observer = observer;
    this.#channels = settings.openChannels({
      ports: connection.ports,
      address: sandbox.address,
      dial: (port, signal) => sandbox.dial(port, signal),
      identity: connection.session,
      maxMessageBytes: settings.maxMessageBytes,
      held: settings.room.open({ tenant, sandbox: sandbox.id, giveUp: () => this.#giveUp() }),
      onLost: (channel) => void this.#connectionLost(channel),
    });
    const readings = (["shell", "control", "stdin"] as const).map((channel) => this.#readReplies(channel));
    for (const reading of [...readings, this.#readIopub()]) {
      reading.catch((error: unknown) => {
        log.error({ err: error }, "connection to the kernel broke");
        void this.kill();
      });
    }
    this.gone = this.#awaitEnd();
  }

  /** False once it has ended, or is about to. */
  get isUsable(): boolean {
    return !this.#isLeaving && !this.#hasExited;
  }

  /**
   * Runs code and yields its events: a slow reader slows the code. An event's memory is valid until the next one. At
   * most one error, and nothing after it. When the signal is aborted or the reader stops early, the code is interrupted
   * and the generator ends only after the kernel is free again, or dead; code that waits behind another client's is
   * never run.
   */
  async *execute(execution: KernelExecution, signal: AbortSignal): AsyncGenerator<ExecutionEvent> {
    for (let attempt = 0; ; attempt++) {
      using request = this.#request("shell", "execute_request", {
        content: { ...NOTHING_ELSE, code: execution.code, silent: false, store_history: true },
        metadata: { env_vars: execution.variables },
      });
      const leave = (): void => request.messages.abandon();
      signal.addEventListener("abort", leave, { once: true });
      if (signal.aborted) leave();
      try {
        let error: ErrorEvent | undefined;
        for await (const message of request.messages) {
          const event = await this.#eventOf(message);
          if (event === undefined) continue;
          if (event.type === "error") error ??= event;
          else yield event;
          if (this.#observer() === undefined) releaseMemory(message.content);
        }
        if (signal.aborted) return;
        const end = await request.done;
        const waitMs = ABORTED_WAITS_MS[attempt];
        if (end.how === "finished" && isAborted(end.reply) && waitMs !== undefined) {
          await delay(waitMs, undefined, { signal }).catch(() => undefined);
          if (signal.aborted) return;
          continue;
        }
        error ??= await errorOf(end, this.#settings.maxErrorBytes);
        if (error !== undefined) yield error;
        return;
      } finally {
        signal.removeEventListener("abort", leave);
        if (!request.isDone) {
          request.messages.abandon();
          await this.#cancel(request);
        }
      }
    }
  }

  /** Forwards a client's message, in order. @throws SandboxError already_exists, invalid_argument */
  async forward(
    channel: Exclude<ChannelName, "iopub">,
    message: MessageParts & { readonly id: string; readonly session: string | undefined },
  ): Promise<void> {
    if (this.#requests.has(message.id))
      throw new SandboxError(REASONS.message_id_in_use, "the msg_id is in use");
    // The answers would be taken for the server's.
    if (message.session === this.connection.session) {
      throw new SandboxError("session_id_invalid", "the session is the server's own");
    }
    if (!this.isUsable) return;
    await this.#channels.send(channel, signedFrames(message, this.connection.key)).catch(() => undefined);
  }

  /** Changes its environment permanently. @throws SandboxError failed_precondition when it does not answer. */
  async changeEnvironment(change: {
    readonly set: Readonly<Record<string, string>>;
    readonly unset: readonly string[];
  }): Promise<void> {
    using asked = this.#request("control", "coppice_environment_request", { content: change });
    const isAnswered = await this.#within(ANSWER_MS, asked.done);
    if (isAnswered && (await asked.done).how === "finished") return;
    throw new SandboxError(REASONS.kernel_start_failed, "the kernel did not take its environment");
  }

  /** Runs code as an invisible cell that is not counted, behind all requests so far. Its errors are not told. */
  async runSilently(code: string): Promise<void> {
    using request = this.#request("shell", "execute_request", {
      content: { ...NOTHING_ELSE, code, silent: true, store_history: false },
    });
    request.messages.abandon();
    await request.done;
  }

  /** Interrupts the running code; resolves when the kernel confirmed it, or the time is up. */
  async interrupt(): Promise<void> {
    using asked = this.#requestInterrupt("interrupt_request", {});
    await this.#within(this.#settings.interruptGraceMs, asked.done);
  }

  /** Ends the kernel: gracefully when it is free, so that exit handlers run, at once when it is busy. */
  async close(): Promise<void> {
    if (this.isUsable && this.#requests.size === 0) {
      this.#isLeaving = true;
      using _asked = this.#request("control", "shutdown_request", { content: { restart: false } });
      await this.#within(SHUTDOWN_GRACE_MS, this.gone);
    }
    await this.kill();
  }

  async kill(): Promise<void> {
    this.#isLeaving = true;
    for (const request of this.#requests.values()) request.end({ how: "closed" });
    if (await killProgram(this.#process)) await this.gone;
    else await this.detach();
  }

  /** Detaches from the kernel, which lives on for a later server. Executions here end. */
  async detach(): Promise<void> {
    this.#isLeaving = true;
    this.#heartbeat?.stop();
    for (const request of this.#requests.values()) request.end({ how: "closed" });
    await this.#channels.close();
  }

  #listenToHeart({ sandbox, settings, isFrozen, onSilent }: KernelSurroundings): void {
    if (this.#hasExited) return;
    const isOurs = this.#interruptMode === undefined;
    this.#heartbeat = new Heartbeat({
      ...settings.heartbeat,
      dial: (signal) => sandbox.dial(this.connection.ports.hb, signal),
      // Code can block a kernel of ours before its first answer, so silence counts from the start.
      isSure: isOurs,
      // Ours answer while code runs; some others have one thread for both.
      isDue: () => !isFrozen() && (isOurs || !this.#isRunningCode),
      onSilent: () => {
        if (!this.isUsable) return;
        this.#log.warn("kernel has no heartbeat any more and is killed");
        onSilent();
        this.#isLeaving = true;
        // The kernel's executions end with its process, as after any death.
        void killProgram(this.#process);
      },
    });
  }

  get #isRunningCode(): boolean {
    return this.#others.size > 0 || [...this.#requests.values()].some(({ hasBegun }) => hasBegun);
  }

  // Ready after one reply and one message on iopub: only then the subscription is in force. Kernels before ipykernel 7
  // publish nothing by themselves, so requests provoke it.
  async #becomeReady(signal: AbortSignal): Promise<void> {
    const died = this.gone.then(() => {
      const reason = this.#outputTail().trim().split("\n").at(-1);
      const text = `the kernel ended while it started${reason ? `: ${reason}` : ""}`;
      throw new SandboxError(REASONS.kernel_start_failed, text);
    });
    died.catch(() => undefined);
    const nudges: KernelRequest[] = [];
    try {
      signal.throwIfAborted();
      for (let waitMs = FIRST_NUDGE_MS; !(this.#hasReplied && this.#hasPublished); waitMs *= 2) {
        // Only kernels of ours answer on control while code runs.
        const channel = this.#interruptMode === undefined ? "control" : "shell";
        nudges.push(this.#request(channel, "kernel_info_request", { content: {} }));
        const waited = this.#within(Math.min(waitMs, MAX_NUDGE_MS), this.#ready.promise);
        await unlessAborted(signal, () => Promise.race([waited, died]));
      }
    } finally {
      for (const nudge of nudges) nudge[Symbol.dispose]();
    }
  }

  // By its id: interrupting any running code could hit another client's.
  async #cancel(request: KernelRequest): Promise<void> {
    // A kernel that is not ours can only interrupt any running code, so it is asked only once this code runs.
    while (
      this.#interruptMode !== undefined &&
      this.#others.size > 0 &&
      !request.hasBegun &&
      !request.isDone
    ) {
      await this.#within(FIRST_REPEAT_MS, request.done);
    }
    let untilMs = performance.now() + this.#settings.interruptGraceMs;
    const leftMs = (): number => Math.max(0, untilMs - performance.now());
    // Code and its interpreter may swallow an interrupt for some moments.
    let waitMs = FIRST_REPEAT_MS;
    for (; !request.isDone && leftMs() > 0; waitMs = Math.min(2 * waitMs, REPEAT_INTERRUPT_MS)) {
      using asked = this.#requestInterrupt("cancel_request", { msg_id: request.id });
      // Waits for the confirmation that the signal was sent: it must not hit the next cell.
      while (!(await this.#within(leftMs(), asked.done))) {
        // Busy with another client's cell, which this request must not interrupt.
        if (request.hasBegun || this.#others.size === 0) break;
        untilMs = performance.now() + this.#settings.interruptGraceMs;
      }
      if (!asked.isDone) break;
      if (this.#wasRunning(await asked.done)) {
        request.interrupted();
        await this.#within(Math.min(waitMs, leftMs()), request.done);
      } else if (request.hasBegun || (await this.#takesRequests())) request.finish();
      else break;
    }
    if (request.isDone) return;
    this.#log.warn("kernel does not become ready for another cell and is killed");
    await this.kill();
  }

  /**
   * True when the kernel answers on shell within the grace, or is busy with another client's cell. A kernel may never
   * answer again: code that an earlier cell left behind can block it, and an interrupt does not stop such code.
   */
  async #takesRequests(): Promise<boolean> {
    const untilMs = performance.now() + this.#settings.interruptGraceMs;
    using probe = this.#request("shell", "kernel_info_request", { content: {} });
    do {
      if (this.#others.size > 0) return true;
      if ((await this.#within(FIRST_REPEAT_MS, probe.done)) || probe.isAnswered) return true;
    } while (performance.now() < untilMs);
    return false;
  }

  /** Interrupts the executions of a session. @throws SandboxError failed_precondition when one goes on. */
  async endRequestsOf(session: string): Promise<void> {
    const untilMs = performance.now() + this.#settings.interruptGraceMs;
    const leftMs = (): number => Math.max(0, untilMs - performance.now());
    // Answered after everything before it.
    using probe = this.#request("shell", "kernel_info_request", { content: {} });
    for (let waitMs = FIRST_NUDGE_MS; leftMs() > 0; waitMs = Math.min(2 * waitMs, REPEAT_INTERRUPT_MS)) {
      if (await this.#within(Math.min(waitMs, leftMs()), probe.done)) return;
      using asked = this.#requestInterrupt("cancel_request", { session });
      await this.#within(leftMs(), asked.done);
      if (!asked.isDone) break;
      if (!this.#wasRunning(await asked.done)) return;
    }
    await this.kill();
    throw new SandboxError(REASONS.kernel_stuck, "the kernel does not stop an abandoned execution");
  }

  /** True when the cancelled request had begun; kernels that are not ours cannot tell that it had not. */
  #wasRunning(end: RequestEnd): boolean {
    if (this.#interruptMode !== undefined) return true;
    return end.how === "finished" && replyContent(end.reply)["is_running"] === true;
  }

  /** Requests an interrupt. Kernels that are not ours cannot limit it to one request. */
  #requestInterrupt(
    type: "interrupt_request" | "cancel_request",
    content: Readonly<Record<string, string>>,
  ): KernelRequest {
    if (this.#interruptMode === undefined) return this.#request("control", type, { content });
    if (this.#interruptMode === "message")
      return this.#request("control", "interrupt_request", { content: {} });
    const request = new KernelRequest(this.#requests);
    const sent = this.#process.kill("SIGINT", "group").catch(() => undefined);
    void sent.then(() => request.finish());
    return request;
  }

  #request(
    channel: "shell" | "control",
    type: string,
    { content, metadata }: Readonly<{ content: Record<string, unknown>; metadata?: Record<string, unknown> }>,
  ): KernelRequest {
    const request = new KernelRequest(this.#requests);
    // The iopub messages of others are never read, and unread ones would hold up everything behind them.
    if (type !== "execute_request") request.messages.abandon();
    if (this.#hasExited) {
      request.end({ how: "died", lacked: this.#lacked });
      return request;
    }
    this.#requests.set(request.id, request);
    const { key, session } = this.connection;
    const frames = encodeMessage({ id: request.id, type, session, content, metadata }, key);
    // Fails only when the channels are closed, and then the request has ended another way.
    this.#channels.send(channel, frames).catch(() => undefined);
    return request;
  }

  async #readReplies(channel: Exclude<ChannelName, "iopub">): Promise<void> {
    for await (const frames of this.#channels.receive(channel)) {
      if (isTurnOver()) await laterTurn(this);
      const message = await this.#decode(frames);
      if (message === undefined) continue;
      if (message.type === "kernel_info_reply") {
        this.#hasReplied = true;
        this.#progress();
      }
      if (asksToExit(message)) {
        this.#isLeaving = true;
        // It ends by itself after the cell that called exit().
        void this.#within(SHUTDOWN_GRACE_MS, this.gone).then(() => this.kill());
      }
      if (message.parentSession !== this.connection.session)
        await this.#observer()?.received(channel, message);
      const request = message.parentId === undefined ? undefined : this.#requests.get(message.parentId);
      if (request === undefined) continue;
      request.reply(message);
      // A control request is done with its reply: no iopub message is awaited.
      if (channel === "control") request.finish();
      else if (!request.isDone) void this.#finishSoon(request);
    }
  }

  async #readIopub(): Promise<void> {
    // Messages that have arrived already are read without yielding to the event loop in between.
    for await (const frames of this.#channels.receive("iopub")) {
      if (isTurnOver()) await laterTurn(this);
      this.#lastIopubMs = performance.now();
      const message = await this.#decode(frames);
      // A message of another kernel, which got the same port.
      if (message === undefined) continue;
      this.#hasPublished = true;
      this.#progress();
      // Internal requests of the server are not shown to clients.
      if (message.parentSession !== this.connection.session || message.parentType === "execute_request") {
        await this.#pausing(this.#observer()?.received("iopub", message));
      }
      this.#noteOthers(message);
      const request = message.parentId === undefined ? undefined : this.#requests.get(message.parentId);
      if (request === undefined) continue;
      const taken = request.publish(message);
      if (request.isIdle && !request.isDone) void this.#finishSoon(request);
      await this.#pausing(taken);
    }
  }

  #noteOthers(message: KernelMessage): void {
    const { parentId, parentType, parentSession } = message;
    if (parentId === undefined || parentSession === this.connection.session) return;
    // Kernels that are not ours may never report the end of anything else.
    if (parentType !== "execute_request" && this.#interruptMode !== undefined) return;
    const state = executionStateOf(message);
    if (state === "idle") this.#others.delete(parentId);
    else if (state === "busy" && this.#others.size < MAX_OTHERS) this.#others.add(parentId);
  }

  // A message over the limit breaks the connection. Messages are lost until it is restored, including ends of
  // executions, so the kernel's state is unknown.
  async #connectionLost(channel: ChannelName): Promise<void> {
    if (channel !== "iopub" || !this.#hasPublished || this.#isLeaving) return;
    if (await this.#within(LOST_GRACE_MS, this.gone)) return;
    this.#log.warn("connection to a kernel was lost, and it is killed");
    await this.kill();
  }

  #giveUp(): void {
    this.#log.warn("a kernel whose messages fill most of jupyter.maxHeldMessages is killed");
    for (const { messages } of this.#requests.values()) messages.abandon();
    void this.kill();
  }

  async #pausing(taken: Promise<void> | undefined): Promise<void> {
    if (taken === undefined) return;
    this.#isPublishing = true;
    await taken;
    this.#isPublishing = false;
    this.#lastIopubMs = performance.now();
  }

  #progress(): void {
    if (this.#hasReplied && this.#hasPublished) this.#ready.resolve();
  }

  async #decode(frames: readonly Buffer[]): Promise<KernelMessage | undefined> {
    try {
      return await decodeMessage(frames, this.connection.key);
    } catch (error) {
      this.#log.debug({ err: error }, "kernel sent what is no message");
      return undefined;
    }
  }

  async #eventOf(message: KernelMessage): Promise<ExecutionEvent | undefined> {
    try {
      return await eventOf(message, this.#settings.maxErrorBytes);
    } catch (error) {
      this.#log.debug({ err: error }, "kernel sent a message with a broken content");
      return noteEvent(`[${message.type} left out: its JSON is not valid, or nested too deeply]\n`);
    }
  }

  async #finishSoon(request: KernelRequest): Promise<void> {
    for (let quietMs = 0; quietMs < MISSING_HALF_MS;) {
      const waitMs = MISSING_HALF_MS - quietMs;
      if (await this.#within(waitMs, request.done)) return;
      // Its idle may be behind output that a slow reader has not taken yet.
      quietMs = this.#isPublishing ? 0 : performance.now() - this.#lastIopubMs;
    }
    this.#log.warn("kernel sent only one of idle and reply for a request");
    request.finish();
  }

  async #awaitEnd(): Promise<void> {
    this.#lacked = shortageText(await this.#process.exit);
    this.#hasExited = true;
    this.#heartbeat?.stop();
    const exitedMs = performance.now();
    for (;;) {
      const quietMs = this.#isPublishing ? 0 : performance.now() - Math.max(exitedMs, this.#lastIopubMs);
      if (quietMs >= LAST_MESSAGES_MS) break;
      await delay(LAST_MESSAGES_MS - quietMs);
    }
    const closed = this.#channels.close();
    for (const request of this.#requests.values()) request.end({ how: "died", lacked: this.#lacked });
    this.#requests.clear();
    await closed;
  }

  #within(timeoutMs: number, promise: Promise<unknown>): Promise<boolean> {
    return fulfilledWithin(promise, { clock: systemClock, timeoutMs });
  }
}
