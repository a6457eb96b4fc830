import { setImmediate as nextTurn } from "node:timers/promises";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Clock, factsOfEnd, fulfilledWithin, type messageStreamOf, SandboxError } from "@coppice/core";
import { describeExit } from "@coppice/core/backend";
import type { OutputPiece, OutputSubscription, StartedCommand } from "../contract/commands.js";
import type { ProcessEventSchema } from "../generated/process/process_pb.js";
import { withKeepalives } from "../contract/keepalive.js";
import { BATCH_BYTES } from "./event-block.js";
import { outputEnvelopes } from "./output-envelopes.js";
import { REASONS } from "../reasons.js";

type MessageStream = ReturnType<typeof messageStreamOf>;

/** A piece of this size is one of many. */
const FLOOD_BYTES = 16 * 1024;
const REASON_MS = 1_000;

export interface FollowOptions {
  /** The stream stops silently when the client has gone. */
  readonly signal: AbortSignal;
  /** The stream's deadline: when it aborts the stream ends with deadline_exceeded. */
  readonly deadline: AbortSignal | undefined;
  readonly keepaliveMs: number;
  readonly clock: Clock;
  readonly messages: MessageStream;
  /** Of the sandbox: aborts with the reason of its end. */
  readonly ended: AbortSignal;
  /** Offset of the first byte of output instead of the next one. */
  readonly from?: number | undefined;
}

type ProcessEvent = { event: MessageInitShape<typeof ProcessEventSchema> };

/** A command as events, with its output between them. @throws SandboxError deadline_exceeded, unavailable. */
export async function* processEvents(
  command: StartedCommand,
  options: FollowOptions,
): AsyncGenerator<ProcessEvent> {
  const { signal, deadline, ended, keepaliveMs, clock, messages, from } = options;
  // Before anything is awaited: a subscription made later would miss output.
  const until = deadline === undefined ? signal : AbortSignal.any([signal, deadline]);
  const output = command.subscribe(until, from);
  yield { event: { event: { case: "start", value: { pid: command.pid } } } };
  for await (const piece of withKeepalives(output, { intervalMs: keepaliveMs, clock })) {
    if (piece === undefined) yield { event: { event: { case: "keepalive", value: {} } } };
    else await sendOutput(messages, [piece, ...(await moreOf(output, piece.data.length))]);
  }
  if (deadline?.aborted) throw new SandboxError(REASONS.request_timeout, "context deadline exceeded");
  if (command.end === undefined) return;
  const { exit } = command.end;
  if (exit === undefined) throw await endOfSandbox(ended, clock);
  const { error, ...report } = describeExit(exit);
  const end = error === undefined ? report : { ...report, error };
  yield { event: { event: { case: "end", value: end } } };
}

/** The backend tells the reason a moment after the end of the process. */
async function endOfSandbox(ended: AbortSignal, clock: Clock): Promise<SandboxError> {
  const told = Promise.withResolvers<void>();
  ended.addEventListener("abort", () => told.resolve(), { once: true });
  if (ended.aborted) told.resolve();
  await fulfilledWithin(told.promise, { clock, timeoutMs: REASON_MS });
  const { words } = factsOfEnd(ended.reason);
  const text = "the sandbox ended while the command ran";
  return new SandboxError("sandbox_ended", words === undefined ? text : `${text}: ${words}`);
}

/** What can be sent together with a piece. A client of little output gets it at once. */
async function moreOf(output: OutputSubscription, pieceBytes: number): Promise<readonly OutputPiece[]> {
  // The rest of what this turn of the event loop reads comes before its end.
  if (pieceBytes >= FLOOD_BYTES) await nextTurn();
  return output.taken(BATCH_BYTES - pieceBytes);
}

async function sendOutput(messages: MessageStream, pieces: readonly OutputPiece[]): Promise<void> {
  const block = outputEnvelopes(pieces, messages.codec);
  for (const { release } of pieces) release?.();
  if (await messages.send(block.bytes)) block.release();
}
