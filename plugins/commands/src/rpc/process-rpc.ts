import { Code, ConnectError, type ConnectRouter, type HandlerContext } from "@connectrpc/connect";
import {
  abortAfter,
  type Clock,
  SandboxError,
  basicUser,
  messageStreamOf,
  requestOf,
  targetOf,
  isTurnOver,
  laterTurn,
} from "@coppice/core";
import type { CommandSelector, Commands, CommandSet, StartedCommand } from "../contract/commands.js";
import {
  type PTY,
  Process,
  type ProcessInput,
  type ProcessSelector,
  Signal,
} from "../generated/process/process_pb.js";
import { processEvents } from "./process-events.js";
import { REASONS } from "../reasons.js";

interface ProcessRpcOptions {
  readonly commands: Commands;
  readonly clock: Clock;
}

const REPLAY_HEADER = "coppice-replay";
/** Silence before a keepalive, unless the client asks for another interval: below the minute that proxies allow. */
const KEEPALIVE_MS = 50_000;
const MAX_KEEPALIVE_SECONDS = 24 * 3600;

/** Serves `process.Process` as E2B's envd does, from the command table. */
export function mountProcessRpc(
  rpc: Pick<ConnectRouter, "service">,
  { commands, clock }: ProcessRpcOptions,
): void {
  const find = (
    context: HandlerContext,
    selector: ProcessSelector | undefined,
    among?: CommandSet,
  ): StartedCommand => commands.find(targetOf(context), readSelector(selector), among);

  const follow = (
    context: HandlerContext,
    command: StartedCommand,
    { deadline, from }: { readonly deadline: AbortSignal | undefined; readonly from?: number | undefined },
  ) =>
    processEvents(command, {
      signal: requestOf(context).signal,
      deadline,
      keepaliveMs: readKeepaliveMs(context) ?? KEEPALIVE_MS,
      clock,
      messages: messageStreamOf(context),
      ended: targetOf(context).ended,
      from,
    });

  rpc.service(Process, {
    async *start(request, context) {
      const timeoutMs = readTimeoutMs(context);
      const command = await commands.start(targetOf(context), {
        path: request.process?.cmd ?? "",
        args: request.process?.args,
        environment: request.process?.envs,
        cwd: request.process?.cwd,
        user: basicUser(requestOf(context).headers.authorization),
        tag: request.tag,
        terminal: request.pty && readTerminalSize(request.pty),
        input: request.stdin === false ? "none" : "pipe",
        timeoutMs,
      });
      // Connect holds the request message, with all unknown fields, until the stream ends.
      delete request.process;
      delete request.$unknown;
      yield* follow(context, command, { deadline: timeoutMs === undefined ? undefined : command.expired });
    },

    async *connect({ process }, context) {
      const command = find(context, process, "retained");
      const timeoutMs = readTimeoutMs(context);
      const from = readReplay(context);
      // The client counts on from here; otherwise it could not detect lost output.
      if (from !== undefined) context.responseHeader.set(REPLAY_HEADER, String(await command.keptFrom(from)));
      if (timeoutMs === undefined) {
        yield* follow(context, command, { deadline: undefined, from });
        return;
      }
      // Only this stream's time is limited: the process lives on.
      const deadline = new AbortController();
      using _limit = abortAfter(deadline, { clock, timeoutMs });
      yield* follow(context, command, { deadline: deadline.signal, from });
    },

    list(_request, context) {
      const running = commands.list(targetOf(context));
      return { processes: running.map(describeCommand) };
    },

    async sendSignal({ process, signal }, context) {
      const command = find(context, process);
      if (signal !== Signal.SIGTERM && signal !== Signal.SIGKILL)
        throw new ConnectError(`invalid signal: ${signalName(signal)}`, Code.Unimplemented);
      try {
        await command.kill(signal === Signal.SIGTERM ? "SIGTERM" : "SIGKILL");
      } catch (error) {
        // envd has one code for all failures.
        throw error instanceof SandboxError
          ? internal(`error sending signal: ${error.message}`, error)
          : error;
      }
      return {};
    },

    async sendInput({ process, input }, context) {
      await sendInput(find(context, process), input);
      return {};
    },

    async streamInput(requests, context) {
      let command: StartedCommand | undefined;
      for await (const { event } of requests) {
        if (event.case === "start") command = find(context, event.value.process);
        else if (event.case === "data") {
          if (command === undefined)
            throw new ConnectError("the first message of an input stream is its start", Code.InvalidArgument);
          await sendInput(command, event.value.input);
        }
        if (isTurnOver()) await laterTurn(targetOf(context));
      }
      return {};
    },

    async closeStdin({ process }, context) {
      const command = find(context, process);
      if (command.request.terminal !== undefined) {
        const text = "error closing stdin: cannot close stdin for PTY process — send Ctrl+D (0x04) instead";
        throw new ConnectError(text, Code.Unknown);
      }
      await command.closeInput();
      return {};
    },

    async update({ process, pty }, context) {
      const command = find(context, process);
      if (pty === undefined) return {};
      try {
        await command.resize(readTerminalSize(pty));
      } catch (error) {
        throw reworded(error, "failed_precondition", "error resizing tty: tty not assigned to process");
      }
      return {};
    },
  });
}

async function sendInput(command: StartedCommand, input: ProcessInput | undefined): Promise<void> {
  const sent = input?.input;
  if (sent?.case === undefined)
    throw new ConnectError("invalid input type: neither stdin nor pty is set", Code.Unimplemented);
  const hasTerminal = command.request.terminal !== undefined;
  if (hasTerminal !== (sent.case === "pty")) {
    const message = hasTerminal
      ? "error writing to stdin: tty assigned to process — input should be written to the pty, not the stdin"
      : "error writing to tty: tty not assigned to process — input should be written to the stdin, not the tty";
    throw new ConnectError(message, Code.Internal);
  }
  try {
    await command.write(sent.value);
  } catch (error) {
    throw reworded(error, "failed_precondition", "error writing to stdin: stdin not enabled or closed");
  }
}

function readSelector(selector: ProcessSelector | undefined): CommandSelector {
  switch (selector?.selector.case) {
    case "pid":
      return { pid: selector.selector.value };
    case "tag":
      return { tag: selector.selector.value };
    default:
      throw new ConnectError("invalid input type: the request selects no process", Code.Unimplemented);
  }
}

// No program can use a terminal without cells.
function readTerminalSize({ size }: PTY): { columns: number; rows: number } {
  return { columns: size?.cols || 80, rows: size?.rows || 24 };
}

/** @throws SandboxError deadline_exceeded when no time is left. */
function readTimeoutMs(context: HandlerContext): number | undefined {
  const timeoutMs = context.timeoutMs();
  if (timeoutMs !== undefined && timeoutMs <= 0)
    throw new SandboxError(REASONS.request_timeout, "context deadline exceeded");
  return timeoutMs;
}

function readKeepaliveMs(context: HandlerContext): number | undefined {
  const header = requestOf(context).headers["keepalive-ping-interval"];
  const seconds = typeof header === "string" && /^\d{1,9}$/.test(header) ? Number(header) : 0;
  return seconds > 0 ? Math.min(seconds, MAX_KEEPALIVE_SECONDS) * 1000 : undefined;
}

/**
 * `Coppice-Replay` of a Connect: offset of the first byte of output, or `all` for the first kept one. Absent, as in the
 * SDKs' requests, it means live output alone: they append everything that they get.
 */
function readReplay(context: HandlerContext): number | undefined {
  const header = context.requestHeader.get(REPLAY_HEADER);
  if (header === null) return undefined;
  if (header === "all") return 0;
  const offset = /^\d+$/.test(header) ? Number(header) : NaN;
  if (Number.isSafeInteger(offset)) return offset;
  throw new SandboxError("request_invalid", `${REPLAY_HEADER} is 'all' or a number of bytes`);
}

function describeCommand({ pid, request }: StartedCommand) {
  return {
    pid,
    ...(request.tag === undefined ? {} : { tag: request.tag }),
    config: {
      cmd: request.path,
      args: [...(request.args ?? [])],
      envs: { ...request.environment },
      ...(request.cwd === undefined ? {} : { cwd: request.cwd }),
    },
  };
}

function signalName(signal: Signal): string {
  return signal === Signal.UNSPECIFIED ? "SIGNAL_UNSPECIFIED" : String(signal);
}

/** envd answers these failures as `internal`, with a text that clients show. */
function reworded(error: unknown, code: SandboxError["code"], message: string): unknown {
  return error instanceof SandboxError && error.code === code ? internal(message, error) : error;
}

function internal(message: string, cause: SandboxError): ConnectError {
  return new ConnectError(message, Code.Internal, undefined, undefined, cause);
}
