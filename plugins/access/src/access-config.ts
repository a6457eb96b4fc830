import { duration } from "@coppice/core";
import { z } from "zod";

const count = () => z.int().positive();

const MIN_KEY = 24;

const apiKey = z
  .string()
  .min(MIN_KEY, `an API key that can be guessed is none: use at least ${MIN_KEY} characters`)
  .regex(/^[\x21-\x7e]+$/, "an API key travels in a header: printable ASCII without spaces");

/** Keys replaced on their way would admit anyone. */
const jwksUrl = z.url({ protocol: /^https?$/ }).refine((text) => {
  const { protocol, hostname } = new URL(text);
  return protocol === "https:" || ["localhost", "127.0.0.1", "[::1]"].includes(hostname);
}, "off this machine, keys are fetched by https");

const jwt = z.strictObject({
  jwksUrl: jwksUrl.describe("Where the identity provider publishes its keys."),
  issuer: z.string().optional().describe("Required value of `iss`; not checked when absent."),
  audience: z
    .union([z.string(), z.array(z.string()).min(1)])
    .optional()
    .describe("Required value of `aud`, or one of its values; not checked when absent."),
  tenantClaim: z
    .string()
    .default("org_id")
    .describe("Claim that names the tenant; a token without it is a tenant of its own, `sub:<sub>`."),
  clockTolerance: duration("30s").describe("How far the provider's clock may be off."),
  refetchAfter: duration("30s").describe("Least time between two fetches for keys that are not known yet."),
});

export type JwtSettings = z.infer<typeof jwt>;

const quota = z.strictObject({
  sandboxes: z.int().nonnegative().optional().describe("Sandboxes at one time, paused ones too."),
  cpuCount: z
    .number()
    .nonnegative()
    .optional()
    .describe("CPUs of all of them, by the limits of their templates."),
  memoryMiB: z
    .int()
    .nonnegative()
    .optional()
    .describe("Memory of all of them, by the limits of their templates."),
  volumes: z.int().nonnegative().optional().describe("Volumes at one time."),
  snapshots: z.int().nonnegative().optional().describe("Snapshots at one time, without those of forks."),
  storageMiB: z
    .int()
    .nonnegative()
    .optional()
    .describe("Disk of volumes and snapshots, by their sizes and the disk limits of their sandboxes."),
  creations: z
    .strictObject({
      sandboxes: count().max(10_000).describe("How many"),
      per: duration("1m").describe("in how much time."),
    })
    .optional()
    .describe("How fast sandboxes may be made."),
});

export type TenantQuota = z.infer<typeof quota>;

const quotas = z.strictObject({
  everybody: quota
    .prefault({})
    .describe("Quotas of each tenant that is not named below; what is absent has no limit."),
  tenants: z
    .record(z.string().min(1), quota)
    .default({})
    .describe(
      "Quotas of single tenants, in place of `everybody`: `acme`, or `sub:<sub>` of a JWT without an organization.",
    ),
});

export type QuotaSettings = z.infer<typeof quotas>;

function rate(requests: number) {
  return z
    .strictObject({
      requests: count().default(requests).describe("How many"),
      per: duration("10s").describe("in how much time."),
    })
    .prefault({});
}

export type RateSettings = z.infer<ReturnType<typeof rate>>;

export const accessConfig = z.strictObject({
  apiKeys: z
    .array(apiKey)
    .default([])
    .describe(
      "Keys of the tenant `default` with all permissions; the Python SDK wants `e2b_` and 40 hex digits. `coppice keys create` makes further keys.",
    ),
  developmentKey: z
    .union([z.literal("random"), apiKey])
    .optional()
    .describe(
      "One more such key, for trying out a server: `random` makes one at the first start and stores it in `dataDir/access/development-key`.",
    ),
  jwt: jwt
    .optional()
    .describe("An identity provider whose RS256 tokens are accepted as `Authorization: Bearer`."),
  quotas: quotas.prefault({}).describe("What tenants may have."),
  rateLimits: z
    .strictObject({
      perAddress: rate(5000).describe(
        "Requests of one client address to the control plane, with a key or without.",
      ),
      perKey: rate(2000).describe("Requests with one key, or of one JWT's subject, to the control plane."),
    })
    .prefault({})
    .describe("More is answered 429 with Retry-After."),
  audit: z
    .strictObject({
      maxEntries: count()
        .default(100_000)
        .describe(
          "Entries that are kept. Of the tenant with the most, the oldest of its most frequent action go first.",
        ),
      maxStrangers: count()
        .default(10_000)
        .describe("Entries about rejected requests, which any client can cause; counted separately."),
      maxAge: duration("90d").describe("How long an entry is kept."),
    })
    .prefault({})
    .describe("Who did what on the control plane, in dataDir."),
});

export type AccessConfig = z.infer<typeof accessConfig>;
