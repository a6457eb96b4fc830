import { z } from "zod";
import { duration, size } from "../../config/units.js";
import { messageOf } from "../../kernel/errors.js";
import { checkReadinessProbe, type ReadinessProbe } from "./readiness-probe.js";

const TEMPLATE_NAME = /^[a-z0-9-_]+(\/[a-z0-9-_]+)?$/;

function refuse(context: z.RefinementCtx, path: PropertyKey[], message: string): void {
  context.addIssue({ code: "custom", path, message });
}

const atLeastOne = (preset: number) => z.int().positive().default(preset);

const templateName = z
  .string()
  .regex(TEMPLATE_NAME, "expected a template name: lower-case letters, digits, - and _, or namespace/name");

const limits = z.strictObject({
  cpuCount: z.number().positive().optional().describe("CPUs"),
  memoryMiB: z.int().positive().optional().describe("Memory in MiB"),
  diskMiB: z.int().positive().optional().describe("Disk in MiB"),
  processes: z.int().positive().optional().describe("Processes at one time"),
});

const pool = z
  .strictObject({
    min: z.int().nonnegative().default(0).describe("Sandboxes that are kept ready"),
    max: z
      .int()
      .positive()
      .optional()
      .describe(
        "Most sandboxes that are kept ready: each creation that finds none ready raises their number by one",
      ),
    refill: z
      .int()
      .positive()
      .optional()
      .describe(
        "Sandboxes that are made ready at the same time; as many as are asked for while one is made, up to the number of processors, when absent",
      ),
    shrinkAfter: duration("10m").describe(
      "Time without such a creation after which the number falls by a quarter",
    ),
  })
  .superRefine(({ min, max }, context) => {
    if (max !== undefined && max < min) refuse(context, ["max"], "is less than min");
  });

const port = z.int().min(1).max(65_535).describe("Port inside the sandbox");

const probeTimes = {
  timeout: duration().optional().describe("Time in which it has to succeed; that of `readiness` when absent"),
  interval: duration().optional().describe("Time between two attempts; that of `readiness` when absent"),
};

const readinessProbe = z
  .discriminatedUnion("type", [
    z.strictObject({ type: z.literal("tcp"), port, ...probeTimes }),
    z.strictObject({
      type: z.literal("http"),
      port,
      path: z
        .string()
        .regex(/^\/[\x21-\x7e]*$/, "expected a path of printable ASCII that begins with /")
        .default("/")
        .describe("What is asked for; an answer of 200 to 399 will do"),
      ...probeTimes,
    }),
    z.strictObject({
      type: z.literal("shell"),
      command: z
        .union([z.string().min(1), z.array(z.string()).min(1)])
        .describe("A line for /bin/sh -lc, or a program and its arguments, that has to end with 0"),
      ...probeTimes,
    }),
  ])
  .transform(({ timeout, interval, ...probe }): ReadinessProbe => ({
    ...probe,
    timeoutMs: timeout,
    intervalMs: interval,
  }));

const readiness = z
  .strictObject({
    timeout: duration("60s").describe("Time that a sandbox has to become ready"),
    maximumTimeout: duration("5m").describe("Most time that a probe may give it"),
    interval: duration("250ms").describe("Time between two attempts"),
    leastInterval: duration("50ms").describe("Least time between two attempts that a probe may name"),
    attemptTimeout: duration("5s").describe("Time that one attempt may take"),
  })
  .superRefine(({ timeout, maximumTimeout }, context) => {
    if (timeout > maximumTimeout) refuse(context, ["timeout"], "is longer than maximumTimeout");
  });

/** Limits of probes, in milliseconds. */
export type ReadinessSettings = z.infer<typeof readiness>;

const template = z.strictObject({
  backend: z.string().optional().describe("Backend that makes it; the default backend when absent"),
  aliases: z.array(templateName).default([]).describe("Further names that clients may use for it"),
  limits: limits.prefault({}).describe("What a sandbox gets where its creator asks for nothing"),
  pool: pool
    .prefault({})
    .describe("Sandboxes that are made before they are asked for; `maximum` does not count them"),
  readinessProbe: readinessProbe
    .optional()
    .describe("Probe that has to succeed before a creation is answered; the request may name another one"),
});

/** The key `sandboxes` of the server's configuration. Durations are parsed to milliseconds. */
export const sandboxesConfig = z
  .strictObject({
    defaultBackend: z
      .union([z.string(), z.array(z.string()).min(1)])
      .optional()
      .describe(
        "Backend of templates that name none, or a list of which the first that this host can run is taken; needed only when several are enabled",
      ),
    defaultTimeout: duration("5m").describe("Lifetime of a sandbox whose creator names no time-out"),
    maximumTimeout: duration("24h").describe("Longest time-out that a client may ask for"),
    pausedKept: duration("30d").describe("Time after which a paused sandbox is removed"),
    maximumSnapshots: z.int().nonnegative().default(100).describe("Snapshots that may exist at one time"),
    snapshotsKept: duration()
      .optional()
      .describe("Time after which a snapshot is removed; when absent they stay until a client removes them"),
    maximumLimits: limits
      .omit({ processes: true })
      .prefault({})
      .describe(
        "Largest limits that a client may ask for; where one is absent, the limit of the template is the largest",
      ),
    maximumVolumes: z.int().nonnegative().default(100).describe("Volumes that may exist at one time"),
    volumeSize: size("10GiB").describe("Disk of a volume whose creator names no size"),
    maximumVolumeSize: size("100GiB").describe("Most disk that a client may ask for in a volume"),
    openVolumes: z
      .strictObject({
        maximum: atLeastOne(8).describe("Volumes that are open at one time"),
        idle: duration("1m").describe("Time without use after which one is closed"),
      })
      .prefault({})
      .describe(
        "Volumes that clients read and write without a sandbox: each uses a sandbox of its own, which `maximum` does not count",
      ),
    maximum: atLeastOne(100).describe("Sandboxes that may exist at one time"),
    onShutdown: z
      .enum(["destroy", "keep"])
      .default("destroy")
      .describe("What a graceful stop does with sandboxes; kept ones are adopted at the next start"),
    templates: z
      .record(templateName, template)
      .prefault({ "base": {}, "code-interpreter-v1": {} })
      .describe("Templates that clients may create sandboxes from"),
    readiness: readiness
      .prefault({})
      .describe("How long readiness probes may take, and how often they are tried"),
    createTimeout: duration("60s").describe("Time that a backend has to make one sandbox"),
    createConcurrency: atLeastOne(8).describe("Sandboxes that are made at the same time"),
    createQueue: z.int().nonnegative().default(256).describe("Creations that may wait for their turn"),
    destroyTimeout: duration("30s").describe("Time that one attempt to destroy a sandbox may take"),
    destroyConcurrency: atLeastOne(16).describe("Sandboxes that are destroyed at the same time"),
    maximumOutbox: atLeastOne(100_000).describe(
      "Events that wait in the ledger for delivery; beyond that the oldest are dropped",
    ),
    tenantsInMetrics: z
      .int()
      .nonnegative()
      .default(100)
      .describe(
        "Tenants with series of their own in metrics, the first since the start; all others share one without a name",
      ),
    endedKept: z
      .int()
      .nonnegative()
      .default(1000)
      .describe(
        "Ended sandboxes that the ledger remembers; of the tenant with the most, the oldest go first",
      ),
  })
  .superRefine((settings, context) => {
    if (settings.defaultTimeout > settings.maximumTimeout) {
      refuse(context, ["defaultTimeout"], "is longer than maximumTimeout");
    }
    if (settings.volumeSize > settings.maximumVolumeSize) {
      refuse(context, ["volumeSize"], "is more than maximumVolumeSize");
    }
    for (const [template, { readinessProbe: probe }] of Object.entries(settings.templates)) {
      try {
        if (probe !== undefined) checkReadinessProbe(probe, settings.readiness);
      } catch (error) {
        refuse(context, ["templates", template, "readinessProbe"], messageOf(error));
      }
    }
    const names = new Set(Object.keys(settings.templates));
    for (const [template, { aliases }] of Object.entries(settings.templates)) {
      for (const [index, alias] of aliases.entries()) {
        if (names.has(alias))
          refuse(context, ["templates", template, "aliases", index], `'${alias}' is already taken`);
        names.add(alias);
      }
    }
  });

/** The parsed settings of the sandbox domain; durations in milliseconds. */
export type SandboxesConfig = z.infer<typeof sandboxesConfig>;
