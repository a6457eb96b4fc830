import { type CreateSandbox, environmentVariables, SandboxError, type SandboxRecord } from "@coppice/core";
import type { Limits } from "@coppice/core/backend";
import { z } from "zod";
import { type NetworkBodyOptions, networkRuleFields, nothing, toEgressRules } from "./network-policy.js";
import { readinessFields, requestedProbe } from "./readiness-probe.js";
import {
  limitFields,
  type LimitsChange,
  requestedLimits,
  requestedTimeoutMs,
  timeoutFields,
} from "./requested-limits.js";
import { volumeMountBody } from "../volumes/volume-files.js";
import { REASONS } from "../reasons.js";

/** The body of both create routes. Options that this server cannot honour are refused, unknown ones ignored. */
export function createBody({
  variableLimitBytes,
  metadataLimitBytes,
  volumeMountLimit,
  ...networkOptions
}: NetworkBodyOptions & {
  /** Bytes of one variable, `name=value`. */
  readonly variableLimitBytes: number;
  /** Bytes of all metadata, names included. */
  readonly metadataLimitBytes: number;
  readonly volumeMountLimit: number;
}) {
  return z.object({
    ...timeoutFields,
    ...lifecycleFields,
    ...limitFields,
    ...readinessFields,
    templateID: z.string(),
    metadata: metadataOf(metadataLimitBytes).nullish(),
    envVars: environmentVariables(variableLimitBytes).nullish(),
    secure: z.boolean().nullish(),
    allow_internet_access: z.boolean().nullish(),
    network: z
      .object({
        allowPublicTraffic: z.boolean().nullish(),
        maskRequestHost: requestHost().nullish(),
        ...networkRuleFields(networkOptions),
      })
      .catchall(nothing("a network rule"))
      .nullish(),
    iam: nothing("identity tokens"),
    mcp: nothing("an MCP gateway"),
    volumeMounts: z.array(volumeMountBody).max(volumeMountLimit).nullish(),
  });
}

export type CreateBody = z.infer<ReturnType<typeof createBody>>;

/** Differences between the two generations of the API. */
export interface CreateDefaults {
  readonly timeoutMs: number;
  /** Overrides the body; undefined = the body decides. */
  readonly secure?: boolean;
  /** When the body decides and is silent. */
  readonly secureUnlessSaid?: boolean;
}

/**
 * Translates a create body. @throws SandboxError invalid_argument for a sandbox without public traffic that is not
 * secure.
 */
export function toCreateSandbox(body: CreateBody, defaults: CreateDefaults): CreateSandbox {
  const secure = defaults.secure ?? body.secure ?? defaults.secureUnlessSaid ?? true;
  const allowPublicTraffic = body.network?.allowPublicTraffic ?? true;
  // E2B requires `secure` explicitly, even where it is the default.
  if (!allowPublicTraffic && !(defaults.secure ?? body.secure ?? false)) {
    const text =
      "You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag.";
    throw new SandboxError(REASONS.secure_required, text);
  }
  const readinessProbe = requestedProbe(body);
  return {
    template: body.templateID,
    timeoutMs: requestedTimeoutMs(body) ?? defaults.timeoutMs,
    ...requestedLifecycle(body),
    metadata: body.metadata ?? {},
    environment: body.envVars ?? {},
    secure,
    allowInternetAccess: body.allow_internet_access ?? true,
    allowPublicTraffic,
    egress: toEgressRules(body.network ?? {}),
    maskRequestHost: body.network?.maskRequestHost ?? undefined,
    limits: chosenLimits(requestedLimits(body)),
    mounts: (body.volumeMounts ?? []).map(({ name, path, readOnly }) => ({
      volume: name,
      path,
      readOnly: readOnly ?? false,
    })),
    ...(readinessProbe !== undefined && { readinessProbe }),
  };
}

function metadataOf(limitBytes: number) {
  return z.record(z.string(), z.string()).refine((metadata) => {
    const texts = Object.entries(metadata).flat();
    return texts.reduce((bytes, text) => bytes + Buffer.byteLength(text), 0) <= limitBytes;
  }, `the metadata of a sandbox have ${limitBytes} bytes at most`);
}

/** A Host header with `${PORT}` for the port, without characters that could end the header. */
function requestHost() {
  return z
    .string()
    .max(255)
    .regex(/^([A-Za-z0-9._-]|\$\{PORT\})+(:(\d{1,5}|\$\{PORT\}))?$/, "expected a host, or host:${PORT}");
}

/** Without zeros, which stand for the template's limits. */
function chosenLimits(requested: LimitsChange): Limits {
  return Object.fromEntries(Object.entries(requested).filter(([, limit]) => (limit ?? 0) !== 0));
}

const onTimeout = z
  .union([
    z.enum(["kill", "pause"]),
    z.object({ action: z.enum(["kill", "pause"]), keepMemory: z.boolean().nullish() }),
  ])
  .transform((value) => (typeof value === "string" ? { action: value, keepMemory: undefined } : value))
  .nullish();

const autoResume = z
  .union([z.boolean(), z.object({ enabled: z.boolean() })])
  .transform((value) => (typeof value === "boolean" ? value : value.enabled))
  .nullish();

const names = { onTimeout, on_timeout: onTimeout, autoResume, auto_resume: autoResume };

/**
 * Fields about the end of a sandbox: E2B's `autoPause` and `autoResume`, and older clients' block `lifecycle`, whose
 * fields are also accepted at the top level.
 */
const lifecycleFields = {
  ...names,
  lifecycle: z.object(names).nullish(),
  autoPause: z.boolean().nullish(),
  autoPauseMemory: z.boolean().nullish(),
};

const schema = z.object(lifecycleFields);

/**
 * The action at the end of a sandbox's time-out, and whether requests resume it. @throws SandboxError invalid_argument for dropped memory without
 * a pause.
 */
function requestedLifecycle(body: z.infer<typeof schema>) {
  const { lifecycle, autoPause } = body;
  const wanted = body.onTimeout ?? body.on_timeout ?? lifecycle?.onTimeout ?? lifecycle?.on_timeout;
  const onTimeout: SandboxRecord["onTimeout"] = wanted?.action ?? (autoPause === true ? "pause" : "kill");
  if (body.autoPauseMemory === false && onTimeout !== "pause") {
    const text = "autoPauseMemory=false only applies when autoPause is true.";
    throw new SandboxError("lifecycle_invalid", text);
  }
  return {
    onTimeout,
    keepsMemory: body.autoPauseMemory ?? wanted?.keepMemory ?? true,
    autoResume:
      body.autoResume ?? body.auto_resume ?? lifecycle?.autoResume ?? lifecycle?.auto_resume ?? false,
  };
}
