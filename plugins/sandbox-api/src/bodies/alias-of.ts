import type { SandboxRecord, Templates } from "@coppice/core";

/** The name of a sandbox's template for people; its id when the template is gone. */
export function aliasOf({ template, owner, build }: SandboxRecord, templates: Templates): string {
  // Without a build it is one of the configuration, whose id is its name.
  if (build === undefined) return template;
  try {
    return templates.find(`${template}:${build.id}`, owner).aliases[0] ?? template;
  } catch {
    return template;
  }
}
