import {
  type Clock,
  type LiveSandbox,
  type Logger,
  MemoryRoom,
  processEnvironment,
  resolveSandboxPath,
  SandboxError,
} from "@coppice/core";
import type { Process, Sandbox, SandboxId, User } from "@coppice/core/backend";
import { newCommandId, readCommandLabel, retainedRequest, writeCommandLabel } from "./command-label.js";
import type { CommandMetrics } from "./command-metrics.js";
import type { CommandsConfig } from "../commands-config.js";
import type {
  Commands,
  CommandSelector,
  CommandSet,
  SandboxLogs,
  StartCommand,
  StartedCommand,
} from "../contract/commands.js";
import type { OutputLogs } from "../output-log/output-logs.js";
import { checkTerminalSize, SandboxCommand, type SandboxCommandOptions } from "./sandbox-command.js";

export interface ProcessTableOptions {
  readonly config: CommandsConfig;
  readonly metrics: CommandMetrics;
  readonly clock: Clock;
  readonly log: Logger;
  readonly logs: OutputLogs;
}

interface Row {
  /** Commands without a process yet, which count towards the limit. */
  starting: number;
  readonly running: Set<SandboxCommand>;
  /** Ended commands, oldest end first, each with a function that cancels its retention timer. */
  readonly ended: Map<SandboxCommand, () => void>;
}

interface Entry extends Pick<
  SandboxCommandOptions,
  "id" | "process" | "request" | "startedAtMs" | "loggedBytes"
> {
  /** Time of its kill; undefined = never. */
  readonly expiresAtMs: number | undefined;
}

export class ProcessTable implements Commands {
  readonly #options: ProcessTableOptions;
  readonly #rows = new Map<LiveSandbox, Row>();
  readonly #room: MemoryRoom;

  constructor(options: ProcessTableOptions) {
    this.#options = options;
    this.#room = new MemoryRoom(options.config.maxUntaken);
  }

  async start(sandbox: LiveSandbox, request: StartCommand): Promise<StartedCommand> {
    const { config, metrics, clock } = this.#options;
    const calledAtMs = clock.now();
    const calledAt = performance.now();
    const { runtime } = sandbox;
    checkStrings(request, config);
    if (request.terminal !== undefined) checkTerminalSize(request.terminal);
    const row = this.#rowWithRoom(sandbox);
    row.starting += 1;
    try {
      const user = await findUser(runtime, request.user);
      const id = newCommandId(calledAtMs);
      const expiresAtMs = request.timeoutMs === undefined ? undefined : calledAtMs + request.timeoutMs;
      const cwd = resolveSandboxPath(request.cwd ?? "", user);
      const spawning = runtime.spawn({
        path: request.path,
        args: request.args ?? [],
        env: processEnvironment(sandbox, user, request.environment),
        cwd,
        user: user.name,
        terminal: request.terminal,
        input: request.input,
        keepsOutput: config.log.enabled,
        label: writeCommandLabel(request, {
          id,
          startedAtMs: calledAtMs,
          ...(expiresAtMs !== undefined && { expiresAtMs }),
        }),
      });
      const process = await spawning.catch((error: unknown) => {
        throw notStarted(error, request, cwd);
      });
      metrics.startTook((performance.now() - calledAt) / 1000);
      return this.#enter(sandbox, row, {
        id,
        process,
        request: retainedRequest(request, config.maxListedSize),
        startedAtMs: clock.now(),
        expiresAtMs,
        loggedBytes: 0,
      });
    } finally {
      row.starting -= 1;
    }
  }

  track(sandbox: LiveSandbox, request: StartCommand, process: Process): StartedCommand {
    const { config, clock } = this.#options;
    const startedAtMs = clock.now();
    return this.#enter(sandbox, this.#rowWithRoom(sandbox), {
      id: newCommandId(startedAtMs),
      process,
      request: retainedRequest(request, config.maxListedSize),
      startedAtMs,
      expiresAtMs: undefined,
      loggedBytes: 0,
    });
  }

  /** Adopts the commands of a sandbox that outlived another server: running and meanwhile ended ones. */
  async adopt(sandbox: LiveSandbox): Promise<void> {
    for (const process of await sandbox.adopted()) {
      const label = readCommandLabel(process.label);
      if (label === undefined) continue;
      const { id, startedAtMs, expiresAtMs, ...request } = label;
      // Its cursors continue where the other server's log ends.
      const logged = await this.log(sandbox.record.id)
        .find({ id })
        .catch(() => undefined);
      const loggedBytes = logged?.outputBytes ?? 0;
      const entry = { id, process, request, startedAtMs, expiresAtMs, loggedBytes };
      this.#enter(sandbox, this.#row(sandbox), entry);
    }
  }

  list(sandbox: LiveSandbox): readonly StartedCommand[] {
    return [...(this.#rows.get(sandbox)?.running ?? [])];
  }

  find(sandbox: LiveSandbox, selector: CommandSelector, among: CommandSet = "running"): StartedCommand {
    const row = this.#rows.get(sandbox);
    const command =
      newest(row?.running ?? [], selector) ??
      (among === "retained" ? newest(row?.ended.keys() ?? [], selector) : undefined);
    if (command !== undefined) return command;
    const which =
      selector.tag === undefined ? `pid ${selector.pid}` : `tag ${selector.tag.slice(0, MAX_SHOWN)}`;
    throw new SandboxError("process_not_found", `process with ${which} not found`);
  }

  log(sandboxId: SandboxId): SandboxLogs {
    return this.#options.logs.of(sandboxId);
  }

  close(): void {
    for (const sandbox of this.#rows.keys()) this.#drop(sandbox);
  }

  #enter(sandbox: LiveSandbox, row: Row, entry: Entry): SandboxCommand {
    const { config, metrics, clock, log, logs } = this.#options;
    const { id, process, startedAtMs, expiresAtMs } = entry;
    const { path, tag } = entry.request;
    metrics.started();
    // The log of an ended sandbox is finished already.
    const recording = sandbox.ended.aborted
      ? undefined
      : logs.begin(sandbox.record, {
          id,
          pid: process.pid,
          path,
          tag,
          startedAtMs,
          keeping: process.keeping,
        });
    const command = new SandboxCommand({
      ...entry,
      recording,
      clock,
      log,
      timeLeftMs: expiresAtMs === undefined ? undefined : expiresAtMs - clock.now(),
      subscriberBufferBytes: config.subscriberBuffer,
      hold: (giveUp) => this.#room.open({ tenant: sandbox.record.owner, sandbox: sandbox.record.id, giveUp }),
      onEnd: (end) => {
        metrics.finished(end.outcome);
        this.#retain(sandbox, command);
      },
    });
    // The sandbox may have ended meanwhile, after its row was closed: its commands end here.
    if (sandbox.ended.aborted) command.abandon();
    else row.running.add(command);
    return command;
  }

  #rowWithRoom(sandbox: LiveSandbox): Row {
    const row = this.#row(sandbox);
    const { maxCommandsPerSandbox } = this.#options.config;
    if (row.running.size + row.starting < maxCommandsPerSandbox) return row;
    const text = `the sandbox already runs ${maxCommandsPerSandbox} commands`;
    throw new SandboxError("command_limit_reached", text);
  }

  #row(sandbox: LiveSandbox): Row {
    let row = this.#rows.get(sandbox);
    if (row === undefined) {
      row = { starting: 0, running: new Set(), ended: new Map() };
      // An entry of an ended sandbox would never be removed.
      if (!sandbox.ended.aborted) {
        this.#rows.set(sandbox, row);
        sandbox.ended.addEventListener("abort", () => this.#drop(sandbox), { once: true });
      }
    }
    return row;
  }

  #drop(sandbox: LiveSandbox): void {
    const row = this.#rows.get(sandbox);
    if (row === undefined) return;
    this.#rows.delete(sandbox);
    for (const command of row.running) command.abandon();
    for (const stopTimer of row.ended.values()) stopTimer();
    this.#options.logs.release(sandbox.record.id);
  }

  #retain(sandbox: LiveSandbox, command: SandboxCommand): void {
    const row = this.#rows.get(sandbox);
    if (row === undefined) return;
    const { config, clock } = this.#options;
    row.running.delete(command);
    row.ended.set(
      command,
      clock.after(config.endedRetention, () => row.ended.delete(command)),
    );
    if (row.ended.size <= config.maxEndedCommands) return;
    for (const [oldest, stopTimer] of row.ended) {
      stopTimer();
      row.ended.delete(oldest);
      break;
    }
  }
}

const MAX_SHOWN = 200;
/** PATH_MAX of Linux. */
const MAX_PATH_BYTES = 4095;
/** LOGIN_NAME_MAX of Linux. */
const MAX_USER_BYTES = 256;
const MAX_SHOWN_WORDS = 20;

async function findUser(runtime: Sandbox, name: string | undefined): Promise<User> {
  try {
    return await runtime.user(name === "" ? undefined : name);
  } catch (error) {
    if (name === undefined || !(error instanceof SandboxError) || error.code !== "not_found") throw error;
    const text = `invalid username: '${name.slice(0, MAX_SHOWN)}'`;
    throw new SandboxError("user_unknown", text, { cause: error });
  }
}

function newest(commands: Iterable<SandboxCommand>, selector: CommandSelector): SandboxCommand | undefined {
  let found: SandboxCommand | undefined;
  for (const command of commands) {
    const isMeant =
      selector.tag === undefined ? command.pid === selector.pid : command.request.tag === selector.tag;
    if (isMeant) found = command;
  }
  return found;
}

/** Refuses arguments that execve would refuse, with a message. */
function checkStrings(request: StartCommand, config: CommandsConfig): void {
  const { path, args = [], environment = {} } = request;
  if (path === "") throw new SandboxError("command_invalid", "error starting process: no command was given");
  refuseLonger(request, "the tag", request.tag, config.maxTagSize);
  refuseLonger(request, "the working directory", request.cwd, MAX_PATH_BYTES);
  refuseLonger(request, "the user's name", request.user, MAX_USER_BYTES);
  for (const name of Object.keys(environment)) {
    if (name === "" || name.includes("="))
      throw invalidStart(request, `'${name.slice(0, MAX_SHOWN)}' cannot be the name of a variable`);
  }
  const variables = Object.entries(environment).map(([name, value]) => `${name}=${value}`);
  let totalBytes = 0;
  for (const text of [path, ...args, ...variables]) {
    if (text.includes("\0")) throw invalidStart(request, "arguments and variables cannot contain a NUL byte");
    const lengthBytes = Buffer.byteLength(text) + 1;
    if (lengthBytes > config.maxArgumentSize) {
      const text = `an argument or variable is larger than ${config.maxArgumentSize - 1} bytes`;
      throw invalidStart(request, text);
    }
    totalBytes += lengthBytes;
  }
  if (totalBytes > config.maxArgumentsSize) {
    const text = `arguments and variables are larger than ${config.maxArgumentsSize} bytes together`;
    throw invalidStart(request, text);
  }
}

function refuseLonger(request: StartCommand, what: string, text: string | undefined, maxBytes: number): void {
  if (text === undefined || Buffer.byteLength(text) <= maxBytes) return;
  throw invalidStart(request, `${what} is longer than ${maxBytes} bytes`);
}

/** Translates a failed start into envd's message. A missing directory and an unknown user keep their own. */
function notStarted(error: unknown, request: StartCommand, cwd: string): unknown {
  if (!(error instanceof SandboxError)) return error;
  const { code, message } = error;
  const isCommandsFault =
    code === "failed_precondition" || (code === "invalid_argument" && !message.startsWith("cwd '"));
  if (!isCommandsFault) return error;
  if (request.terminal === undefined) return invalidStart(request, message, error);
  const { columns, rows } = request.terminal;
  const text = `error starting pty with command '${shownCommand(request)}' in dir '${cwd}' with '${columns}' cols and '${rows}' rows: ${message}`;
  return new SandboxError("command_invalid", text, { cause: error });
}

function invalidStart(request: StartCommand, reason: string, cause?: unknown): SandboxError {
  const text = `error starting process '${shownCommand(request)}': ${reason}`;
  return new SandboxError("command_invalid", text, { cause });
}

function shownCommand({ path, args = [] }: StartCommand): string {
  // Some of these errors come from long or many arguments, so the message shows only the beginning.
  const words = [path, ...args.slice(0, MAX_SHOWN_WORDS)].map((word) => word.slice(0, MAX_SHOWN));
  const line = words.join(" ").replaceAll("\0", "\\0");
  return line.length > MAX_SHOWN ? `${line.slice(0, MAX_SHOWN)}…` : line;
}
