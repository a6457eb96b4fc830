import { duration, size } from "@coppice/core";
import { z } from "zod";

const name = z.string().regex(/^[a-z0-9][a-z0-9.-]{0,62}$/, "expected letters, digits, dots and dashes");
const url = z.url({ protocol: /^https?$/, error: "expected a URL such as http://10.0.0.1:2379" });
const file = z.string().min(1);
const secret = z.string().min(32, "expected at least 32 characters");

const etcd = z.strictObject({
  endpoints: z.array(url).min(1).describe("URLs of its members; any of them answers for all."),
  user: z.string().optional().describe("Where the cluster has authentication."),
  password: z.string().optional().describe("Of that user."),
  ca: file
    .optional()
    .describe("PEM file with the authority of its certificates, where the system's do not do."),
  cert: file.optional().describe("PEM file with this server's certificate, where members ask for one."),
  key: file.optional().describe("PEM file with the key of that certificate."),
  prefix: z
    .string()
    .regex(/^\/[\x21-\x7e]*\/$/, "expected a path such as /coppice/")
    .default("/coppice/")
    .describe("Of all keys: fleets with unlike ones share a cluster."),
  timeout: duration("3s").describe("Time that a member has to answer."),
});

export const fleetConfig = z.strictObject({
  node: name
    .optional()
    .describe("Name of this server, which no other one of the fleet has; the host's when absent."),
  listener: z
    .string()
    .default("fleet")
    .describe("Listener of this server for the others; it serves nothing else."),
  address: url.describe("URL of that listener, as the others reach it."),
  secret: secret.describe("The same on all servers of the fleet; it is never sent."),
  previousSecrets: z
    .array(secret)
    .max(3)
    .default([])
    .describe("Former secrets, valid beside it while it is changed on one server after the other."),
  ca: file
    .optional()
    .describe("PEM file with the authority of the others' certificates, where the system's do not do."),
  etcd: etcd.optional().describe("The fleet's store, for servers on several hosts."),
  file: file
    .optional()
    .describe("An SQLite file as the fleet's store in place of etcd, for several servers on one host."),
  lease: duration("10s").describe(
    "Time after which a silent server is taken for lost, and stops serving by itself; whole seconds.",
  ),
  restart: duration("60s").describe(
    "Time that a server which was stopped has to come back to its sandboxes.",
  ),
  lostKept: duration("1d").describe("How long the loss of a sandbox is told."),
  offerTimeout: duration("1s").describe(
    "Time that another server has to say whether it can have a new sandbox.",
  ),
  idempotencyKept: duration("1d").describe(
    "How long the server that an `Idempotency-Key` led to is remembered.",
  ),
  gatherTimeout: duration("5s").describe("Time that the other servers have for their part of a list."),
  connectTimeout: duration("3s").describe("Time for a connection to another server."),
  maxAnswer: size("64MiB").describe(
    "Largest answer of another server that is read whole, such as its part of a list.",
  ),
  maxLookups: z
    .int()
    .positive()
    .default(64)
    .describe(
      "Requests for what this server does not know that may ask the store and the other servers at one time; as many more of clients without a credential, of which each address has as many as it leaves free.",
    ),
});

export type FleetConfig = z.infer<typeof fleetConfig>;
