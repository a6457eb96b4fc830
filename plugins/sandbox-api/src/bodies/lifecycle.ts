import { type OnTimeout, SandboxError } from "@coppice/core";
import { z } from "zod";

const onTimeout = z
  .union([
    z.enum(["kill", "pause"]),
    z.object({
      action: z.enum(["kill", "pause"]),
      keepMemory: z.boolean().nullish(),
    }),
  ])
  .transform((value) => (typeof value === "string" ? { action: value, keepMemory: undefined } : value))
  .nullish();

const autoResume = z
  .union([z.boolean(), z.object({ enabled: z.boolean() })])
  .transform((value) => (typeof value === "boolean" ? value : value.enabled))
  .nullish();

const names = {
  onTimeout,
  on_timeout: onTimeout,
  autoResume,
  auto_resume: autoResume,
};

/**
 * Fields about the end of a sandbox: E2B's `autoPause` and `autoResume`, and older clients' block `lifecycle`, whose
 * fields are also accepted at the top level.
 */
export const lifecycleFields = {
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
export function requestedLifecycle(body: z.infer<typeof schema>) {
  const { lifecycle, autoPause } = body;
  const wanted = body.onTimeout ?? body.on_timeout ?? lifecycle?.onTimeout ?? lifecycle?.on_timeout;
  const onTimeout: OnTimeout = wanted?.action ?? (autoPause === true ? "pause" : "kill");
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
