import { duration, size } from "@coppice/core";
import { z } from "zod";

/** Settings of the Jupyter server that each sandbox seems to have. */
export const JupyterServerConfig = z.strictObject({
  enabled: z.boolean().default(true).describe("Serve Jupyter's interface to the kernels of a sandbox"),
  port: z
    .int()
    .min(1)
    .max(65535)
    .default(8888)
    .describe("Port of a sandbox that it answers, beside /sandboxes/<id>/jupyter on any listener"),
  maxBody: size().prefault("1MiB").describe("Largest request body"),
  maxSessions: z.int().min(1).default(64).describe("Notebook sessions of one sandbox"),
  maxClients: z.int().min(1).default(32).describe("Clients of one kernel, those that may come back included"),
  maxFrame: size().prefault("32MiB").describe("Largest WebSocket message of a client, buffers included"),
  maxPending: z.int().min(1).default(10_000).describe("Unanswered requests of one client"),
  maxPendingBytes: size().prefault("64MiB").describe("Unanswered requests of one client, together"),
  maxClientQueue: size()
    .prefault("16MiB")
    .describe("What waits for a slow client before the kernel waits with it"),
  slowClientTimeout: duration()
    .prefault("30s")
    .describe("How long a client may take nothing of its own output before it is closed"),
  slowLookerTimeout: duration()
    .prefault("2s")
    .describe("How long a client may be behind with the output of others before it is closed"),
  replay: duration().prefault("2m").describe("How long a lost client may come back to what it missed"),
  maxReplay: size()
    .prefault("10MiB")
    .describe("What is kept for a lost client; of more, output is left out with a note"),
  maxRestarts: z
    .int()
    .min(0)
    .default(5)
    .describe("Restarts in a row of a kernel that keeps dying while somebody is connected"),
  ping: duration().prefault("30s").describe("How often clients are asked whether they are still there"),
});

export type JupyterServerSettings = z.infer<typeof JupyterServerConfig>;
