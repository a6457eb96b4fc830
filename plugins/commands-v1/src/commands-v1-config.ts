import { duration, size } from "@coppice/core";
import { z } from "zod";

export const commandsV1Config = z.strictObject({
  basePath: z
    .string()
    .regex(/^(\/[a-z0-9-]+)+$/, "expected a path such as /v1")
    .default("/v1")
    .describe("Path below which the routes are served."),
  maxBody: size("1MiB").describe("Largest request body."),
  maxListed: z
    .int()
    .positive()
    .default(1_000)
    .describe("Commands in the list of a sandbox, the newest first."),
  defaultPage: size("256KiB").describe("Output in one page of a log without a limit."),
  maxPage: size("4MiB").describe("Largest limit that a client may ask for."),
  heartbeat: duration("15s").describe("Silence after which a followed log gets a comment."),
});

export type CommandsV1Config = z.infer<typeof commandsV1Config>;
