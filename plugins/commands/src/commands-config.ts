import { duration, size } from "@coppice/core";
import { z } from "zod";

const count = () => z.int().positive();

/** Settings of the commands plugin, each with its default. */
export const CommandsConfig = z.strictObject({
  maxCommandsPerSandbox: count().default(1000).describe("Commands that may run in one sandbox at a time."),
  maxEndedCommands: count()
    .default(256)
    .describe("Ended commands of one sandbox that are kept for a late look."),
  endedRetention: duration()
    .prefault("30s")
    .describe("How long the end of a command can still be asked for."),
  maxArgumentSize: size()
    .prefault("128KiB")
    .describe("Longest single argument or variable; Linux itself takes no more than 128KiB."),
  maxArgumentsSize: size().prefault("1MiB").describe("All arguments and variables of one command together."),
  subscriberBuffer: size()
    .prefault("256KiB")
    .describe("Output held for a client that reads slowly, before the command is made to wait."),
  killedOutputGrace: duration()
    .prefault("200ms")
    .describe("How long the output of a killed command may stay open, where children of it hold it."),
  keepaliveInterval: duration()
    .prefault("50s")
    .describe("Silence after which a stream gets a keepalive, unless the client asks for its own interval."),
  defaultTimeout: duration()
    .prefault("60s")
    .describe("Life of a command of POST /commands without timeout_ms."),
  maxLineSize: size()
    .prefault("64KiB")
    .describe("Longest line that POST /commands waits to see the end of; a longer one is sent in pieces."),
});

export type CommandsConfig = z.infer<typeof CommandsConfig>;
