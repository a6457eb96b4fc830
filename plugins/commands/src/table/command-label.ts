import { randomUUID } from "node:crypto";
import { z } from "zod";
import type { StartCommand } from "../contract/commands.js";

/** A version 7 UUID: 48 bits of time, so that ids sort by it, then random bits. */
export function newCommandId(nowMs: number): string {
  const time = Math.floor(nowMs).toString(16).padStart(12, "0");
  // A version 4 UUID has its random bits in the same places, and the runtime keeps some ready.
  return `${time.slice(0, 8)}-${time.slice(8)}-7${randomUUID().slice(15)}`;
}

/** The kept part of a running command's request: all of it, or only the first arguments when it is long. */
export function retainedRequest(request: StartCommand, mostBytes: number): StartCommand {
  const { args = [], environment = {} } = request;
  let bytes = Buffer.byteLength(request.path);
  for (const text of [...args, ...Object.entries(environment).flat()]) bytes += Buffer.byteLength(text);
  if (bytes <= mostBytes) return request;
  const kept: string[] = [];
  let left = mostBytes;
  for (const argument of args) {
    left -= Buffer.byteLength(argument);
    if (left < 0) break;
    kept.push(argument);
  }
  // A copy: a slice of a string keeps all of it in memory.
  const path = Buffer.from(request.path).subarray(0, mostBytes).toString();
  return { ...request, path, args: kept, environment: undefined };
}

const PREFIX = "commands:";
/** Limit of the label that a backend keeps with a process. */
const MAX_LABEL_BYTES = 4095;

const labelSchema = z.object({
  id: z.string(),
  startedAtMs: z.number(),
  /** Absent = unlimited. */
  expiresAtMs: z.number().optional(),
  path: z.string(),
  args: z.array(z.string()).optional(),
  cwd: z.string().optional(),
  user: z.string().optional(),
  tag: z.string().optional(),
  terminal: z.object({ columns: z.number(), rows: z.number() }).optional(),
  input: z.enum(["pipe", "none"]).optional(),
});

/** Facts about a command that a later server needs to adopt it. */
type CommandLabel = z.infer<typeof labelSchema>;

/**
 * Encodes a command for the server that adopts its process. Variables are left out: they may be secrets, and are never
 * needed again. Long values are cut at their end, the arguments first.
 */
export function writeCommandLabel(
  request: StartCommand,
  facts: Pick<CommandLabel, "id" | "startedAtMs" | "expiresAtMs">,
): string {
  const { path, args, cwd, user, tag, terminal, input } = request;
  const whole = { ...facts, path, args, cwd, user, tag, terminal, input };
  for (const shorter of [
    whole,
    { ...whole, args: undefined },
    { ...facts, path: path.slice(0, 500), tag, terminal, input },
  ]) {
    const label = PREFIX + JSON.stringify(shorter);
    if (Buffer.byteLength(label) <= MAX_LABEL_BYTES) return label;
  }
  return PREFIX + JSON.stringify({ ...facts, path: "", terminal, input });
}

/** Decodes a label; undefined when it is no command's. */
export function readCommandLabel(label: string): CommandLabel | undefined {
  if (!label.startsWith(PREFIX)) return undefined;
  try {
    return labelSchema.parse(JSON.parse(label.slice(PREFIX.length)));
  } catch {
    // The label is of another version of the server.
    return undefined;
  }
}
