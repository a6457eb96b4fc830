import { duration, size } from "@coppice/core";
import { z } from "zod";

const count = () => z.int().min(1);

export const jupyterServerConfig = z.strictObject({
  enabled: z.boolean().default(true).describe("Serve Jupyter's interface to the kernels of a sandbox"),
  port: z
    .int()
    .min(1)
    .max(65535)
    .default(8888)
    .describe("Port of a sandbox that it answers, beside /sandboxes/<id>/jupyter on any listener"),
  maxBody: size("1MiB").describe("Largest request body"),
  maxSessions: count().default(64).describe("Notebook sessions of one sandbox"),
  maxClients: count()
    .default(32)
    .describe("Clients of one kernel, including disconnected ones that may reconnect"),
  maxFrame: size("32MiB").describe("Largest WebSocket message of a client, buffers included"),
  maxPending: count().default(10_000).describe("Unanswered requests of one client"),
  maxPendingBytes: size("64MiB").describe("Unanswered requests of one client, together"),
  maxClientQueue: size("16MiB").describe(
    "Output that may wait for a slow client; beyond it the kernel waits as well",
  ),
  slowClientTimeout: duration("30s").describe(
    "How long a client may read nothing of its own output before it is disconnected",
  ),
  slowLookerTimeout: duration("2s").describe(
    "How long a client may be behind with the output of other clients before it is disconnected",
  ),
  replay: duration("2m").describe(
    "How long a disconnected client may reconnect and get the output that it missed",
  ),
  maxReplay: size("10MiB").describe(
    "Output that is kept for a disconnected client; the rest is left out, with a note",
  ),
  maxRestarts: z
    .int()
    .min(0)
    .default(5)
    .describe("Restarts in a row of a kernel that keeps ending while a client is connected"),
  ping: duration("30s").describe("Time between two pings of a client"),
});

export type JupyterServerSettings = z.infer<typeof jupyterServerConfig>;
