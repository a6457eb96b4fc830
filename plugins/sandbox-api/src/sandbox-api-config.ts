import type { IncomingHttpHeaders } from "node:http";
import { duration, size } from "@coppice/core";
import { z } from "zod";

/** Clients whose sandboxes require their token when `POST /sandboxes` does not contain `secure`. */
const SECURE_BY_DEFAULT = ["always", "except-sdks", "never"] as const;

/**
 * The default of `secure` for a request. E2B's SDKs name themselves in a header, and those that may leave `secure` out
 * are older than tokens: they could not use a sandbox that requires one.
 */
export function isSecureUnlessSaid(
  headers: IncomingHttpHeaders,
  secureByDefault: (typeof SECURE_BY_DEFAULT)[number],
): boolean {
  return secureByDefault === "except-sdks" ? headers["publisher"] !== "e2b" : secureByDefault === "always";
}

export const sandboxApiConfig = z.strictObject({
  domain: z
    .string()
    .regex(/^[A-Za-z0-9.-]+(:\d+)?$/, "expected a host name, with a port where it is not 443")
    .optional()
    .describe(
      "Wildcard domain at which clients reach sandboxes; port 0 stands for the port of the listener `api`. When absent, clients use the domain that they are configured with.",
    ),
  secureByDefault: z
    .enum(SECURE_BY_DEFAULT)
    .default("except-sdks")
    .describe(
      "Whether a sandbox of `POST /sandboxes` requires its access token when the request does not say `secure`; `except-sdks` leaves out E2B SDKs that are older than access tokens.",
    ),
  metricsInterval: duration()
    .refine((ms) => ms >= 100, "expected 100ms or more")
    .prefault("5s")
    .describe("Time between two samples of what each sandbox uses."),
  metricsKept: duration("1h").describe("Time for which samples of a running sandbox are kept."),
  idempotencyKept: duration("24h").describe(
    "Time for which a creation with an Idempotency-Key is answered with the same sandbox.",
  ),
  maxIdempotencyKeys: z
    .int()
    .min(1)
    .default(10_000)
    .describe(
      "Keys of creations that are remembered (Idempotency-Key). Of the tenant with the most, the oldest go first; those of running sandboxes are kept as well.",
    ),
  maxForks: z.int().positive().default(16).describe("Most sandboxes that one fork may make."),
  maxBody: size("1MiB").describe("Largest request body."),
  maxVariable: size("128KiB").describe(
    "Longest variable in envVars, name included; Linux itself takes no more than 128KiB.",
  ),
  maxMetadata: size("16KiB").describe(
    "Most bytes of a sandbox's metadata, names and values: each of its events, and each delivery of one to a webhook, has them.",
  ),
  maxNetworkRules: z
    .int()
    .min(1)
    .max(1000)
    .default(500)
    .describe("Most entries of allowOut, and of denyOut, in the network rules of a sandbox."),
  maxVolumeEntries: z
    .int()
    .min(1)
    .default(10_000)
    .describe("Most entries of a volume that one list may have."),
  maxVolumeMounts: z.int().nonnegative().default(16).describe("Most volumes that one sandbox may have."),
});

export type SandboxApiConfig = z.infer<typeof sandboxApiConfig>;
