import { randomInt } from "node:crypto";
import { posix } from "node:path";
import { ignoreGone } from "../shell/shell.js";
import { type Clock, fulfilledWithin, type LiveSandbox, type Spool } from "@coppice/core";
import { exitCodeOf } from "@coppice/core/backend";
import type {
  Commands,
  LoggedCommand,
  LoggedPiece,
  OutputPiece,
  StartedCommand,
} from "@coppice/plugin-commands";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { type CollectedOutput, OutputCollector } from "../shell/output-collector.js";
import { newState, processStart } from "../shell/process-start.js";
import { checkCommand, type ExecCommand, type Session } from "../shell/session.js";
import { ShellError } from "../shell/shell-error.js";
import { signalTree } from "../shell/signal-tree.js";

type ProcessStatus = "running" | "completed" | "failed" | "killed" | "error";

/** A process of a sandbox, also one that has ended or that another surface started. */
export interface ShellProcess {
  readonly id: string;
  readonly pid: number;
  readonly command: string;
  readonly status: ProcessStatus;
  readonly startedAtMs: number;
  readonly endedAtMs: number | undefined;
  readonly exitCode: number | undefined;
}

/** A process with its output, from the first byte that is kept to the end of the process. */
export interface FollowedProcess {
  readonly process: ShellProcess;
  readonly output: AsyncIterable<OutputPiece>;
  /** The process as it is now. */
  readonly now: () => Promise<ShellProcess>;
}

interface StartProcess extends ExecCommand {
  readonly id?: string | undefined;
  /** As in `StartCommand`. */
  readonly lastOutputMs?: number | undefined;
}

const PAGE_BYTES = 256 * 1024;
const MAX_ID_LENGTH = 128;

interface SandboxProcessesOptions {
  readonly sandbox: LiveSandbox;
  readonly commands: Commands;
  readonly clock: Clock;
  readonly config: ShellSessionsConfig;
  readonly spool: Spool;
}

/**
 * The processes of one sandbox: commands of the one table, named by their tag. They start in the state of a session, and
 * outlive it.
 */
export class SandboxProcesses {
  readonly #options: SandboxProcessesOptions;
  /** Texts of commands, and those that are being started. A restart of the server forgets them. */
  readonly #texts = new Map<string, string>();

  constructor(options: SandboxProcessesOptions) {
    this.#options = options;
  }

  /**
   * @param session without one the process starts in a new shell's state.
   * @throws ShellError INVALID_COMMAND, VALIDATION_FAILED, RESOURCE_BUSY for the id of a running process, and those of a
   * session.
   */
  async start(
    session: Session | undefined,
    { id = newProcessId(), lastOutputMs, ...command }: StartProcess,
  ): Promise<StartedCommand> {
    if (command.command.trim() === "")
      throw new ShellError("INVALID_COMMAND", "Invalid command: it is empty");
    if (id === "" || id.length > MAX_ID_LENGTH || id.includes("\0")) {
      throw new ShellError("VALIDATION_FAILED", `A process id has 1 to ${MAX_ID_LENGTH} characters`);
    }
    checkCommand(command);
    if (this.#running(id) !== undefined) throw busy(id);
    const state = session === undefined ? undefined : await session.snapshot();
    if (this.#running(id) !== undefined) throw busy(id);
    this.#note(id, command.command);
    return await this.#launch(command, { state, directory: session?.cwd, tag: id, lastOutputMs });
  }

  /** Runs a command in a new shell's state. It is in no list. @throws ShellError as `checkCommand` */
  async run({ lastOutputMs, ...command }: Omit<StartProcess, "id">): Promise<StartedCommand> {
    checkCommand(command);
    return await this.#launch(command, { lastOutputMs });
  }

  async find(id: string): Promise<ShellProcess> {
    return this.#describe(await this.#logged(id));
  }

  async list(): Promise<readonly ShellProcess[]> {
    const { sandbox, commands } = this.#options;
    const seen = new Set<string>();
    const listed: ShellProcess[] = [];
    for await (const command of commands.log(sandbox.record.id).list()) {
      // Commands of sessions have no tag, nor have those of other surfaces that were given none.
      if (command.tag === undefined || seen.has(command.tag)) continue;
      seen.add(command.tag);
      listed.push(this.#describe(command));
    }
    return listed.reverse();
  }

  /** Ends a process with all that descend from it: by SIGTERM, and by SIGKILL what is left after `processGrace`. */
  async kill(id: string): Promise<void> {
    const { sandbox, clock, config } = this.#options;
    const { tag } = await this.#logged(id);
    const running = tag === undefined ? undefined : this.#running(tag);
    if (running === undefined) {
      throw new ShellError("COMMAND_NOT_FOUND", `Process '${id}' has ended already`, { processId: id });
    }
    const limit = { clock, timeoutMs: config.processGrace };
    for (const signal of ["SIGTERM", "SIGKILL"] as const) {
      await signalTree(sandbox.runtime, running.pid, signal, { includesRoot: true, ...limit }).catch(
        ignoreGone,
      );
      await running.kill(signal, "group").catch(ignoreGone);
      if (await fulfilledWithin(running.ended, limit)) return;
    }
    throw new ShellError("PROCESS_ERROR", `Process '${id}' did not end`, { processId: id });
  }

  /** @returns how many were ended. */
  async killAll(): Promise<number> {
    const running = (await this.list()).filter(({ status }) => status === "running");
    const results = await Promise.allSettled(running.map(({ id }) => this.kill(id)));
    return results.filter(({ status }) => status === "fulfilled").length;
  }

  async logs(id: string): Promise<CollectedOutput> {
    const logged = await this.#logged(id);
    const collector = this.newCollector(this.#options.config.maxOutput);
    try {
      let isFirst = true;
      let isCut = false;
      for await (const { stream, data, offset } of this.#kept(logged)) {
        isCut ||= isFirst && offset > 0;
        isFirst = false;
        await collector.add({ stream, data });
        if (collector.isFull) break;
      }
      const { truncated, ...output } = await collector.result();
      return { ...output, truncated: truncated || isCut };
    } catch (error) {
      await collector[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** For the output of one command. */
  newCollector(maxBytes: number): OutputCollector {
    const { sandbox, spool } = this.#options;
    return new OutputCollector({ maxBytes, spool, owner: sandbox.record.owner });
  }

  /** @throws ShellError PROCESS_NOT_FOUND */
  async follow(id: string, signal: AbortSignal): Promise<FollowedProcess> {
    const { sandbox, commands } = this.#options;
    const logged = await this.#logged(id);
    const running = commands.list(sandbox).find((command) => command.id === logged.id);
    return {
      process: this.#describe(logged),
      output: running?.subscribe(signal, 0) ?? this.#kept(logged),
      // Not by its tag, which a later process may have taken.
      now: async () => this.#describe(await commands.log(sandbox.record.id).find({ id: logged.id })),
    };
  }

  async #launch(
    { command, cwd, env, timeoutMs }: ExecCommand,
    from: {
      readonly state?: Buffer | undefined;
      readonly directory?: string | undefined;
      readonly tag?: string;
      readonly lastOutputMs: number | undefined;
    },
  ): Promise<StartedCommand> {
    const { sandbox, commands, config } = this.#options;
    const { state = newState(config.workdir), directory = config.workdir, tag, lastOutputMs } = from;
    const { args, input } = processStart(state, {
      command,
      env,
      cwd: cwd === undefined ? undefined : posix.resolve(directory, cwd),
    });
    const started = await commands.start(sandbox, {
      path: "bash",
      args,
      cwd: "/",
      tag,
      timeoutMs,
      lastOutputMs,
    });
    // Not awaited: a subscription is complete only in the turn in which the command was started.
    void started
      .write(input)
      .then(() => started.closeInput())
      .catch(ignoreGone);
    return started;
  }

  #running(tag: string): StartedCommand | undefined {
    const { sandbox, commands } = this.#options;
    return commands.list(sandbox).findLast(({ request }) => request.tag === tag);
  }

  async #logged(id: string): Promise<LoggedCommand> {
    const { sandbox, commands } = this.#options;
    const logs = commands.log(sandbox.record.id);
    for (const selector of [{ tag: id }, { id }] as const) {
      const found = await logs.find(selector).catch(ignoreGone);
      if (found !== undefined) return found;
    }
    throw new ShellError("PROCESS_NOT_FOUND", `Process not found: ${id}`, { processId: id });
  }

  async *#kept({ id }: LoggedCommand): AsyncGenerator<LoggedPiece> {
    const { sandbox, commands } = this.#options;
    const logs = commands.log(sandbox.record.id);
    for (let cursor = 0; ;) {
      const page = await logs.page(id, { cursor, limitBytes: PAGE_BYTES });
      yield* page.pieces;
      page.release();
      if (page.nextCursor === cursor) return;
      cursor = page.nextCursor;
    }
  }

  #describe({ id, tag = id, pid, path, startedAtMs, phase, end }: LoggedCommand): ShellProcess {
    const exitCode = end?.exit === undefined ? undefined : exitCodeOf(end.exit);
    return {
      id: tag,
      pid,
      command: this.#texts.get(tag) ?? path,
      status: statusOf(phase, exitCode),
      startedAtMs,
      endedAtMs: end?.endedAtMs,
      exitCode,
    };
  }

  #note(id: string, text: string): void {
    this.#texts.delete(id);
    this.#texts.set(id, text.slice(0, MAX_TEXT_LENGTH));
    const [oldest] = this.#texts.keys();
    if (this.#texts.size > MAX_TEXTS && oldest !== undefined) this.#texts.delete(oldest);
  }
}

const MAX_TEXTS = 1_000;
const MAX_TEXT_LENGTH = 4_096;

function statusOf(phase: LoggedCommand["phase"], exitCode: number | undefined): ProcessStatus {
  if (phase === "running") return "running";
  if (phase === "lost" || exitCode === undefined) return "error";
  if (phase === "killed" || exitCode === 137 || exitCode === 143) return "killed";
  return exitCode === 0 ? "completed" : "failed";
}

function busy(id: string): ShellError {
  return new ShellError("RESOURCE_BUSY", `A process with the id '${id}' is running`, { processId: id });
}

/** An id as the original system makes them. */
function newProcessId(): string {
  return `proc_${Date.now()}_${randomInt(36 ** 6)
    .toString(36)
    .padStart(6, "0")}`;
}
