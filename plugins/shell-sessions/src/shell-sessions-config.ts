import { duration, size } from "@coppice/core";
import { z } from "zod";

const count = () => z.int().positive();

export const shellSessionsConfig = z.strictObject({
  port: z.int().min(1).max(65_535).default(3000).describe("Port of every sandbox that answers the clients."),
  authorization: z
    .enum(["token", "session"])
    .default("token")
    .describe(
      "Meaning of `Authorization: Bearer` where the sandbox has a token that is given by no other way: that token, or a session.",
    ),
  pathTokens: z
    .boolean()
    .default(true)
    .describe("Takes a sandbox's token in the path `/t/<token>/…`, for clients that send no headers."),
  workdir: z
    .string()
    .regex(/^(\/[^/\0]+)+$/, "expected an absolute path")
    .default("/workspace")
    .describe("Directory made in a sandbox with its first session, in which sessions start."),
  commandTimeout: duration()
    .optional()
    .describe("Time-out of commands of sessions that name none; none when absent."),
  shellTimeout: duration("5s").describe("Time that an idle shell has to take a command, before it is ended."),
  killGrace: duration("1s").describe(
    "Time that a command has to end after its time-out, and then its shell to be ready, before the shell is ended.",
  ),
  processGrace: duration("5s").describe(
    "Time that a process has to end after SIGTERM, and then after SIGKILL.",
  ),
  heartbeat: duration("15s").describe("Silence after which a stream of events gets a comment."),
  maxBody: size("8MiB").describe("Largest request body."),
  maxOutput: size("64MiB").describe(
    "Output of one command in its answer, of each stream; the rest is dropped.",
  ),
  maxSpool: size("4GiB").describe(
    "Disk of the server that outputs of commands take together until they are answered, beyond 1 MiB of each stream; without room the rest is dropped.",
  ),
  maxFile: size("32MiB").describe("Largest file that is read in one answer; streams have no limit."),
  maxListEntries: count().default(10_000).describe("Entries of one listing of files."),
  probeTimeout: duration("5s").describe("Time that a watched port has to answer, each time."),
  changesKept: duration("10m").describe(
    "Time for which changes of a directory are counted for a client that has not asked.",
  ),
  gitTimeout: duration("10m").describe("Time of a clone whose request names none."),
  maxWatches: count().default(100).describe("Ports of one sandbox that are watched at once."),
  maxSockets: count().default(256).describe("Open WebSockets at a time."),
  maxSocketsPerSandbox: count().default(16).describe("Open WebSockets to one sandbox at a time."),
  maxSocketRequests: count().default(64).describe("Requests of one WebSocket that are answered at a time."),
  allowedOrigins: z
    .array(z.url())
    .default([])
    .describe("Web pages that may open a WebSocket, beside those of this server: https://portal.example."),
  maxSessions: count().default(64).describe("Sessions of one sandbox."),
  maxWaiting: count().default(100).describe("Calls that may wait for one session."),
});

export type ShellSessionsConfig = z.infer<typeof shellSessionsConfig>;
