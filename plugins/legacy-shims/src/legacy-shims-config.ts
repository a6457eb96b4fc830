import { duration, size } from "@coppice/core";
import { z } from "zod";

const count = () => z.int().positive();

export const legacyShimsConfig = z.strictObject({
  shell: z.string().startsWith("/").default("/bin/sh").describe("Program that a WebSocket is connected to."),
  dialect: z
    .enum(["json", "pty"])
    .default("pty")
    .describe("Frames of a WebSocket that does not say `?dialect=`: JSON texts over pipes, or a terminal."),
  defaultTimeout: duration("60s").describe("Time-out of a command of /exec without timeout_ms."),
  maximumTimeout: duration("1h").describe("Longest timeout_ms of /exec."),
  maxBody: size("1MiB").describe("Largest request body of /exec."),
  maxOutput: size("1MiB").describe("Most of stdout, and of stderr, that /exec returns; the rest is dropped."),
  maxExecutions: count().default(64).describe("Requests to /exec that are served at a time."),
  maxMessage: size("64KiB").describe("Largest message that a WebSocket takes."),
  maxSockets: count().default(256).describe("Open WebSockets at a time."),
  maxSocketsPerSandbox: count().default(16).describe("Open WebSockets to one sandbox at a time."),
  maxLine: size("64KiB").describe(
    "Longest line that the JSON dialect waits to see the end of; a longer one comes in pieces.",
  ),
  pingInterval: duration("30s").describe(
    "Time between pings of a WebSocket; one that misses a whole interval is closed.",
  ),
  allowedOrigins: z
    .array(z.url())
    .default([])
    .describe(
      "Web pages that may open a WebSocket, beside those of this server itself: https://portal.example.",
    ),
});

export type LegacyShimsConfig = z.infer<typeof legacyShimsConfig>;
