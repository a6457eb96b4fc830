import { duration, size } from "@coppice/core";
import { z } from "zod";

const count = () => z.int().positive();

const outputLogConfig = z.strictObject({
  enabled: z.boolean().default(true).describe("Keep what commands write in files below dataDir."),
  maxPerSandbox: size("64MiB").describe("Output kept of one sandbox; beyond it the oldest is removed."),
  maxTotal: size("1GiB").describe("Output kept of all sandboxes together."),
  maxSandboxes: count().default(10_000).describe("Sandboxes whose output is kept, most of them ended."),
  maxAge: duration("7d").describe(
    "How long output is kept, also when its command and its sandbox have ended.",
  ),
  flushInterval: duration("50ms").describe(
    "How long output is collected before it is written; a crash of the server loses it.",
  ),
  buffer: size("4MiB").describe(
    "Output of one sandbox that may wait for the disk; beyond it its commands wait as well.",
  ),
  stallTimeout: duration("2s").describe(
    "How long the disk may take for a write before commands go on without a log.",
  ),
  retryInterval: duration("10s").describe(
    "Pause after a full disk or a failed write before the log is tried again.",
  ),
  maxPage: size("4MiB").describe(
    "Largest limit that a client may ask for; most text in one answer of a sandbox's logs.",
  ),
});

export type OutputLogConfig = z.infer<typeof outputLogConfig>;

export const commandsConfig = z.strictObject({
  maxCommandsPerSandbox: count().default(1000).describe("Commands that may run in one sandbox at a time."),
  maxEndedCommands: count().default(256).describe("Ended commands of one sandbox whose result is kept."),
  endedRetention: duration("30s").describe("How long the result of an ended command can be asked for."),
  maxArgumentSize: size("128KiB").describe(
    "Longest single argument or variable; Linux itself takes no more than 128KiB.",
  ),
  maxArgumentsSize: size("1MiB").describe("All arguments and variables of one command together."),
  maxTagSize: size()
    .refine((bytes) => bytes <= 4096, "expected at most 4KiB")
    .prefault("1KiB")
    .describe("Longest tag of a command, 4KiB at most."),
  maxListedSize: size("16KiB").describe(
    "Arguments and variables of one running command that lists of commands show; of a command with more they show its first arguments alone.",
  ),
  subscriberBuffer: size("256KiB").describe(
    "Output held for a client that reads slowly, before the command is made to wait.",
  ),
  maxUntaken: size("512MiB").describe(
    "Output of all commands that clients have not taken, where one has over 64 KiB of it, and 2 MiB for each command that waits for them. Beyond it such clients are cut off, of the command, sandbox and tenant that has the most.",
  ),
  defaultTimeout: duration("60s").describe("Time-out of a command of POST /commands without timeout_ms."),
  maxLineSize: size("64KiB").describe(
    "Longest line of POST /commands and of a sandbox's logs; a longer one comes in pieces.",
  ),
  log: outputLogConfig.prefault({}).describe("The stored output of commands."),
});

export type CommandsConfig = z.infer<typeof commandsConfig>;
