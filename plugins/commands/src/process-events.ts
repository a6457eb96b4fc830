import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Clock, SandboxError } from "@coppice/core";
import type { Output } from "@coppice/core/backend";
import type { StartedCommand } from "./commands.js";
import { describeExit } from "./exit-report.js";
import type { ProcessEventSchema } from "./generated/process/process_pb.js";
import { withKeepalives } from "./keepalive.js";

export interface FollowOptions {
  /** The client's presence: the stream stops silently when it aborts. */
  readonly signal: AbortSignal;
  /** The stream's deadline: when it aborts the stream ends with deadline_exceeded. */
  readonly deadline: AbortSignal | undefined;
  readonly keepaliveMs: number;
  readonly clock: Clock;
  /** Begin with this byte of the output instead of the next one. */
  readonly from?: number | undefined;
}

type ProcessEvent = { event: MessageInitShape<typeof ProcessEventSchema> };

// What envd reads from a pipe or a terminal at a time; clients may have sized buffers after it.
const PIPE_CHUNK_BYTES = 32 * 1024;
const TERMINAL_CHUNK_BYTES = 16 * 1024;

/**
 * A command as the events of a process stream: start, data and keepalives, end.
 * @throws SandboxError deadline_exceeded, or unavailable when the sandbox ended first.
 */
export async function* processEvents(
  command: StartedCommand,
  options: FollowOptions,
): AsyncGenerator<ProcessEvent> {
  const { signal, deadline, keepaliveMs, clock, from } = options;
  // Before anything is awaited: a subscription made later would miss output.
  const until = deadline === undefined ? signal : AbortSignal.any([signal, deadline]);
  const output = command.subscribe(until, from);
  yield { event: { event: { case: "start", value: { pid: command.pid } } } };
  for await (const piece of withKeepalives(output, { intervalMs: keepaliveMs, clock })) {
    if (piece === undefined) yield { event: { event: { case: "keepalive", value: {} } } };
    else yield* dataEvents(piece);
  }
  if (deadline?.aborted) throw new SandboxError("deadline_exceeded", "context deadline exceeded");
  if (command.end === undefined) return;
  const { exit } = command.end;
  if (exit === undefined) throw new SandboxError("unavailable", "the sandbox ended while the command ran");
  const { error, ...report } = describeExit(exit);
  const end = error === undefined ? report : { ...report, error };
  yield { event: { event: { case: "end", value: end } } };
}

function* dataEvents({ stream, data }: Output): Generator<ProcessEvent> {
  const chunkBytes = stream === "terminal" ? TERMINAL_CHUNK_BYTES : PIPE_CHUNK_BYTES;
  const name = stream === "terminal" ? "pty" : stream;
  for (let offset = 0; offset < data.length; offset += chunkBytes) {
    const value = data.subarray(offset, offset + chunkBytes);
    yield { event: { event: { case: "data", value: { output: { case: name, value } } } } };
  }
}
