import { type FullLimits, fullLimits, type SandboxImage } from "@coppice/core/backend";

/** The image of a sandbox as a property of its dataset, which has no blanks. */
export function imageText({ id, user, workdir = "" }: SandboxImage): string {
  return [id, ...[user, workdir].map((text) => Buffer.from(text).toString("base64url"))].join(":");
}

export function imageOf(text: string): SandboxImage {
  const [id = "", ...encoded] = text.split(":");
  const [user = "", workdir = ""] = encoded.map((each) => Buffer.from(each, "base64url").toString());
  return { id, user, ...(workdir !== "" && { workdir }) };
}

/** The limits of a sandbox as a property of its dataset. */
export function limitsText({ cpuCount, diskMiB, memoryMiB, processes }: FullLimits): string {
  return [cpuCount, memoryMiB, diskMiB, processes].join(":");
}

/** What is no limit, for the property can be changed by hand, is the default. */
export function limitsOf(text: string | undefined, defaults: FullLimits): FullLimits {
  const [cpuCount, memoryMiB, diskMiB, processes] = text?.split(":").map(limitOf) ?? [];
  return fullLimits({ cpuCount, memoryMiB, diskMiB, processes }, defaults);
}

function limitOf(text: string): number | undefined {
  const limit = Number(text);
  return Number.isFinite(limit) && limit > 0 ? limit : undefined;
}
