import type { SandboxImage } from "@coppice/core/backend";

/** The image of a sandbox as a property of its dataset, which has no blanks. */
export function imageText({ id, user, workdir = "" }: SandboxImage): string {
  return [id, ...[user, workdir].map((text) => Buffer.from(text).toString("base64url"))].join(":");
}

export function imageOf(text: string): SandboxImage {
  const [id = "", ...encoded] = text.split(":");
  const [user = "", workdir = ""] = encoded.map((each) => Buffer.from(each, "base64url").toString());
  return { id, user, ...(workdir !== "" && { workdir }) };
}
