import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Clock, type MessageStream, SandboxError } from "@coppice/core";
import type { StartedCommand } from "../contract/commands.js";
import { describeExit } from "../contract/exit-report.js";
import type { ProcessEventSchema } from "../generated/process/process_pb.js";
import { withKeepalives } from "./keepalive.js";
import { outputEnvelopes } from "./output-envelopes.js";

export interface FollowOptions {
  /** The stream stops silently when the client has gone. */
  readonly signal: AbortSignal;
  /** The stream's deadline: when it aborts the stream ends with deadline_exceeded. */
  readonly deadline: AbortSignal | undefined;
  readonly keepaliveMs: number;
  readonly clock: Clock;
  readonly messages: MessageStream;
  /** Offset of the first byte of output instead of the next one. */
  readonly from?: number | undefined;
}

type ProcessEvent = { event: MessageInitShape<typeof ProcessEventSchema> };

/** A command as events, with its output between them. @throws SandboxError deadline_exceeded, unavailable. */
export async function* processEvents(
  command: StartedCommand,
  options: FollowOptions,
): AsyncGenerator<ProcessEvent> {
  const { signal, deadline, keepaliveMs, clock, messages, from } = options;
  // Before anything is awaited: a subscription made later would miss output.
  const until = deadline === undefined ? signal : AbortSignal.any([signal, deadline]);
  const output = command.subscribe(until, from);
  yield { event: { event: { case: "start", value: { pid: command.pid } } } };
  for await (const piece of withKeepalives(output, { intervalMs: keepaliveMs, clock })) {
    if (piece === undefined) yield { event: { event: { case: "keepalive", value: {} } } };
    else await messages.send(outputEnvelopes(piece, messages.codec));
  }
  if (deadline?.aborted) throw new SandboxError("request_timeout", "context deadline exceeded");
  if (command.end === undefined) return;
  const { exit } = command.end;
  if (exit === undefined) throw new SandboxError("sandbox_ended", "the sandbox ended while the command ran");
  const { error, ...report } = describeExit(exit);
  const end = error === undefined ? report : { ...report, error };
  yield { event: { event: { case: "end", value: end } } };
}
