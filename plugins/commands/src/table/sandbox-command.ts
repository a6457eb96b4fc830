import { setImmediate as nextTurn } from "node:timers/promises";
import { type Clock, fulfilledWithin, type HeldMemory, type Logger, SandboxError } from "@coppice/core";
import type { Exit, Process, Signal, TerminalSize } from "@coppice/core/backend";
import type {
  CommandEnd,
  CommandOutcome,
  OutputPiece,
  OutputSubscription,
  StartCommand,
  StartedCommand,
} from "../contract/commands.js";
import { OutputFan, replayed } from "./output-fan.js";
import type { CommandRecording } from "../output-log/output-logs.js";
import { REASONS } from "../reasons.js";

/** How long children of a killed command may hold its output open. */
const KILLED_OUTPUT_GRACE_MS = 200;

export interface SandboxCommandOptions {
  readonly id: string;
  readonly process: Process;
  readonly request: StartCommand;
  readonly clock: Clock;
  readonly log: Logger;
  readonly startedAtMs: number;
  /** The rest of `request.timeoutMs`. */
  readonly timeLeftMs: number | undefined;
  readonly subscriberBufferBytes: number;
  /** Opens what waits for its slow subscribers. */
  readonly hold: (giveUp: () => void) => HeldMemory;
  /** Records its output; undefined without a log. */
  readonly recording: CommandRecording | undefined;
  /** Bytes of an adopted command that the recording already has. */
  readonly loggedBytes: number;
  /** Called once, after `end` was set and before anyone is notified. */
  readonly onEnd: (end: CommandEnd) => void;
}

const MAX_TERMINAL = 0xffff;
/** A process in uninterruptible sleep dies only when its device answers. */
const REAPED_WITHIN_MS = 500;

/** One process of a sandbox, from its start to its end: reads its output and enforces its time-out. */
export class SandboxCommand implements StartedCommand {
  readonly id: string;
  readonly pid: number;
  readonly startedAtMs: number;
  request: StartCommand;
  end: CommandEnd | undefined;
  readonly #ended = Promise.withResolvers<CommandEnd>();
  readonly ended: Promise<CommandEnd> = this.#ended.promise;
  readonly #expiry = new AbortController();
  readonly expired: AbortSignal = this.#expiry.signal;
  readonly #options: Omit<SandboxCommandOptions, "request">;
  readonly #process: Process;
  readonly #output: OutputFan;
  readonly #requestedSignals = new Set<Signal>();
  readonly #cancelTimers: (() => void)[] = [];
  #exit: Exit | undefined;
  #isOutputRead = false;
  #isFatalSignalDelivered = false;
  /** Bytes passed to subscribers and to the log; both get each piece in the same turn. */
  #outputBytes: number;
  /** Bytes of kept output that will come and that the log has already. */
  #replayedBytes: number;

  constructor({ request, ...options }: SandboxCommandOptions) {
    this.id = options.id;
    this.pid = options.process.pid;
    this.#options = options;
    const { keeping } = options.process;
    this.#outputBytes = Math.max(options.loggedBytes, keeping?.offset ?? 0);
    this.#replayedBytes = keeping === undefined ? 0 : this.#outputBytes - keeping.offset;
    this.#process = options.process;
    this.request = request;
    this.startedAtMs = options.startedAtMs;
    const held = options.hold(() => this.#output.cutSlow());
    this.#output = new OutputFan(options.subscriberBufferBytes, held);
    if (options.timeLeftMs !== undefined)
      this.#cancelTimers.push(options.clock.after(options.timeLeftMs, () => this.#expire()));
    void this.#readOutput();
    void this.#awaitExit();
  }

  subscribe(signal: AbortSignal, from?: number): OutputSubscription {
    const live = this.#output.subscribe(signal);
    const { recording } = this.#options;
    if (recording === undefined || from === undefined || from >= this.#outputBytes) return live;
    // The subscription has begun, so the log is read only up to here.
    return replayed({ history: recording.output({ from, until: this.#outputBytes }), live, signal });
  }

  async keptFrom(offset: number): Promise<number> {
    return (await this.#options.recording?.keptFrom(offset)) ?? this.#outputBytes;
  }

  async write(data: Uint8Array): Promise<void> {
    if (this.end !== undefined || (this.request.input === "none" && this.request.terminal === undefined))
      throw new SandboxError("stdin_closed", "stdin not enabled or closed");
    if (data.length > 0) await this.#process.write(data);
  }

  async closeInput(): Promise<void> {
    if (this.request.terminal !== undefined)
      throw new SandboxError(REASONS.stdin_not_closable, "cannot close the input of a terminal");
    if (this.end === undefined && this.request.input !== "none") await this.#process.closeInput();
  }

  async kill(signal: Signal, scope: "process" | "group" = "process"): Promise<void> {
    if (this.end !== undefined)
      throw new SandboxError("process_not_found", "the process has already finished");
    const isFatal = signal === "SIGKILL" || signal === "SIGTERM";
    // Before the signal is sent: its effect may arrive before its confirmation.
    this.#requestedSignals.add(signal);
    try {
      await this.#process.kill(signal, scope);
      if (isFatal) this.#isFatalSignalDelivered = true;
      // The client's next command may check that the process is gone.
      if (signal === "SIGKILL") {
        const { clock } = this.#options;
        await fulfilledWithin(this.#process.exit, { clock, timeoutMs: REAPED_WITHIN_MS });
      }
    } catch (error) {
      const isGone = error instanceof SandboxError && error.code === "not_found";
      if (!isGone || !isFatal) throw error;
      // Its children still hold the output open, but the stream is to end with the command.
      this.#cutOutputSoon();
      return;
    }
    if (isFatal && this.#exit !== undefined) this.#cutOutputSoon();
  }

  async resize(size: TerminalSize): Promise<void> {
    if (this.request.terminal === undefined)
      throw new SandboxError("terminal_missing", "tty not assigned to process");
    checkTerminalSize(size);
    await this.#process.resize(size);
  }

  /** Ends the command of a removed sandbox without waiting for it. */
  abandon(): void {
    this.#finish();
  }

  async #readOutput(): Promise<void> {
    // Lets the caller of `start` subscribe before the first byte is read.
    await nextTurn();
    const { recording } = this.#options;
    try {
      for await (const output of this.#process.output) {
        if (this.end !== undefined) break;
        const data = this.#withoutReplayed(output.data);
        if (data.length === 0) continue;
        const { stream, release } = output;
        const piece: OutputPiece = { stream, data, offset: this.#outputBytes, release };
        this.#outputBytes += data.length;
        if (recording === undefined) this.#process.keeping?.confirm(this.#outputBytes);
        else recording.append(piece);
        await this.#output.publish(piece);
        await recording?.room();
      }
    } catch (error) {
      this.#options.log.error({ err: error, pid: this.pid }, "reading the output of a command failed");
    }
    this.#isOutputRead = true;
    if (this.#exit !== undefined) this.#finish();
  }

  #withoutReplayed(data: Uint8Array): Uint8Array {
    const known = Math.min(this.#replayedBytes, data.length);
    this.#replayedBytes -= known;
    if (known > 0) this.#process.keeping?.confirm(this.#outputBytes - this.#replayedBytes);
    return known === 0 ? data : data.subarray(known);
  }

  async #awaitExit(): Promise<void> {
    this.#exit = await this.#process.exit;
    if (this.#isOutputRead) this.#finish();
    else if (this.#isFatalSignalDelivered || this.#isEndedByRequest()) this.#cutOutputSoon();
    else if (this.request.lastOutputMs !== undefined) this.#cutOutputSoon(this.request.lastOutputMs);
  }

  #expire(): void {
    this.#expiry.abort();
    this.kill("SIGKILL").catch((error: unknown) => {
      if (error instanceof SandboxError && error.code === "not_found") return;
      this.#options.log.error({ err: error, pid: this.pid }, "killing a command at its timeout failed");
    });
  }

  #cutOutputSoon(graceMs = KILLED_OUTPUT_GRACE_MS): void {
    if (this.end !== undefined) return;
    this.#cancelTimers.push(this.#options.clock.after(graceMs, () => this.#finish()));
  }

  #isEndedByRequest(): boolean {
    return this.#exit?.signal !== undefined && this.#requestedSignals.has(this.#exit.signal);
  }

  /** Undefined when the process ended with its sandbox, whose own end is reported a moment later. */
  #knownExit(): Exit | undefined {
    return this.#exit?.signal !== undefined && this.#exit.isAssumed === true ? undefined : this.#exit;
  }

  #outcome(): CommandOutcome {
    const exit = this.#knownExit();
    if (exit === undefined || this.#isFatalSignalDelivered || this.#isEndedByRequest()) return "killed";
    return exit.code === 0 ? "ok" : "error";
  }

  #finish(): void {
    if (this.end !== undefined) return;
    for (const cancel of this.#cancelTimers) cancel();
    this.end = { exit: this.#knownExit(), outcome: this.#outcome(), endedAtMs: this.#options.clock.now() };
    this.request = { ...this.request, environment: undefined };
    const { recording } = this.#options;
    if (recording === undefined) this.#process.keeping?.forget();
    else recording.end(this.end);
    this.#options.onEnd(this.end);
    this.#output.close();
    this.#ended.resolve(this.end);
  }
}

/** @throws SandboxError invalid_argument for an impossible size. */
export function checkTerminalSize({ columns, rows }: TerminalSize): void {
  for (const cells of [columns, rows]) {
    if (!Number.isInteger(cells) || cells < 1 || cells > MAX_TERMINAL)
      throw new SandboxError("terminal_size_invalid", `a terminal has 1 to ${MAX_TERMINAL} columns and rows`);
  }
}
