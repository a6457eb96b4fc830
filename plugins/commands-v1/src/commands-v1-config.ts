import { duration, size } from "@coppice/core";
import { z } from "zod";

export const commandsV1Config = z.strictObject({
  basePath: z
    .string()
    .regex(/^(\/[a-z0-9-]+)+$/, "expected a path such as /v1")
    .default("/v1")
    .describe("Path below which the routes are served."),
  workdir: z
    .string()
    .regex(/^(\/[^/\0]+)+$/, "expected an absolute path")
    .default("/workspace")
    .describe("Directory made in each sandbox, in which its commands start."),
  autoStop: duration("30m").describe("Idle time after which a sandbox stops whose creator names none."),
  autoDelete: duration("7d").describe("Age at which a sandbox is deleted whose creator names none."),
  maxAutoDelete: duration("30d").describe("Longest time to the deletion that a client may ask for."),
  checkInterval: duration("10s").describe("Time between two looks for idle and overdue sandboxes."),
  maxVariable: size("128KiB").describe("Longest environment variable of a sandbox, with its name."),
  idempotencyKept: duration("24h").describe("Time for which the Idempotency-Key of a sandbox is remembered."),
  maxIdempotencyKeys: z
    .int()
    .positive()
    .default(10_000)
    .describe("Idempotency-Keys that are remembered; the oldest are dropped first."),
  maxBody: size("1MiB").describe("Largest request body."),
  maxListed: z
    .int()
    .positive()
    .default(1_000)
    .describe("Commands in the list of a sandbox, the newest first."),
  maxPage: size("4MiB").describe("Largest limit that a client may ask for."),
  maxUnsentPages: size("512MiB").describe("Pages together that clients have asked for and not yet taken."),
  maxEvent: size("64KiB").describe("Most output in one event of a followed log."),
  heartbeat: duration("15s").describe("Silence after which a followed log gets a comment."),
  maxImport: size("4GiB").describe("Largest archive that is imported, unpacked size included."),
  maxSpool: size("8GiB").describe("Disk of the server that imports take together while they are checked."),
  maxImportEntries: z.int().positive().default(100_000).describe("Most entries of an imported archive."),
  runTemplate: z.string().min(1).default("base").describe("Template of a one-shot run without an image."),
  runTimeout: duration("10m").describe("Time-out of a one-shot run that names none."),
  maxRunTimeout: duration("1h").describe("Longest time-out of a one-shot run."),
  maxRunOutput: size("1MiB").describe("Most of stdout, and of stderr, in the answer to a one-shot run."),
  runsKept: duration("24h").describe("Time for which the result of a one-shot run is kept."),
  terminalGrace: duration("10m").describe("Time for which a terminal without clients is kept."),
  scrollback: size("256KiB").describe("Output of a terminal that a client gets when it attaches again."),
  pingInterval: duration("30s").describe(
    "Time between pings of a WebSocket; one that is silent for a whole interval is closed.",
  ),
  maxMessage: size("64KiB").describe("Largest message that a WebSocket takes."),
  maxSockets: z.int().positive().default(256).describe("Open WebSockets at a time."),
  maxSocketsPerSandbox: z.int().positive().default(16).describe("Open WebSockets to one sandbox at a time."),
  maxTerminals: z.int().positive().default(32).describe("Running terminals of one sandbox."),
  allowedOrigins: z
    .array(z.url())
    .default([])
    .describe("Web pages that may open a WebSocket, beside those of this server: https://portal.example."),
});

export type CommandsV1Config = z.infer<typeof commandsV1Config>;
