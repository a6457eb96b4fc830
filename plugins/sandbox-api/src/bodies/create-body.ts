import { type CreateSandbox, type Limits, type LimitsChange, SandboxError } from "@coppice/core";
import { z } from "zod";
import { lifecycleFields, requestedLifecycle } from "./lifecycle.js";
import { type NetworkBodyOptions, networkRuleFields, toEgressRules } from "./network-policy.js";
import { nothing } from "./nothing.js";
import { readinessFields, requestedProbe } from "./readiness-probe.js";
import { limitFields, requestedLimits } from "./requested-limits.js";
import { requestedTimeoutMs, timeoutFields } from "./requested-timeout.js";
import { volumeMountBody } from "../volumes/volume-body.js";

export interface CreateBodyOptions extends NetworkBodyOptions {
  /** Bytes of one variable, `name=value`. */
  readonly variableLimitBytes: number;
  readonly volumeMountLimit: number;
}

/** The body of both create routes. What this server cannot keep is refused, what it does not know is ignored. */
export function createBody({ variableLimitBytes, volumeMountLimit, ...networkOptions }: CreateBodyOptions) {
  return z.object({
    ...timeoutFields,
    ...lifecycleFields,
    ...limitFields,
    ...readinessFields,
    templateID: z.string(),
    metadata: z.record(z.string(), z.string()).nullish(),
    envVars: environment(variableLimitBytes).nullish(),
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

/** Parts of a creation that differ between the two generations of the API. */
export interface CreateDefaults {
  readonly timeoutMs: number;
  /** Whatever the body says; undefined = the body decides. */
  readonly secure?: boolean;
  /** When the body decides and says nothing. */
  readonly secureUnlessSaid?: boolean;
}

/**
 * A create body in the words of the domain.
 * @throws SandboxError invalid_argument for a sandbox that keeps traffic out and lets commands in.
 */
export function toCreateSandbox(body: CreateBody, defaults: CreateDefaults): CreateSandbox {
  const secure = defaults.secure ?? body.secure ?? defaults.secureUnlessSaid ?? true;
  const allowPublicTraffic = body.network?.allowPublicTraffic ?? true;
  // E2B wants it said, also where it would be so.
  if (!allowPublicTraffic && !(defaults.secure ?? body.secure ?? false)) {
    const text =
      "You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag.";
    throw new SandboxError("invalid_argument", text);
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

/** Variables that a program can be given; what execve would refuse is refused here, where it can be explained. */
function environment(limitBytes: number) {
  return z.record(z.string(), z.string()).superRefine((variables, context) => {
    for (const [name, value] of Object.entries(variables)) {
      const refuse = (message: string): void => context.addIssue({ code: "custom", message, path: [name] });
      if (name === "" || /[=\0]/.test(name))
        refuse("a variable's name is not empty and has no '=' or NUL in it");
      else if (value.includes("\0")) refuse("a variable has no NUL in it");
      // "=" and the closing NUL count, too.
      else if (Buffer.byteLength(name) + Buffer.byteLength(value) + 2 > limitBytes) {
        refuse(`a variable is no longer than ${limitBytes} bytes`);
      }
    }
  });
}

/** A Host header, in which `${PORT}` may stand for the port: nothing that could end the header. */
function requestHost() {
  return z
    .string()
    .max(255)
    .regex(/^([A-Za-z0-9._-]|\$\{PORT\})+(:(\d{1,5}|\$\{PORT\}))?$/, "expected a host, or host:${PORT}");
}

/** Without those that say that the template's will do. */
function chosenLimits(requested: LimitsChange): Limits {
  return Object.fromEntries(Object.entries(requested).filter(([, limit]) => (limit ?? 0) !== 0));
}
