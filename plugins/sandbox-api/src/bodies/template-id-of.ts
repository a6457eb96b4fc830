import type { Templates, TenantSnapshots } from "@coppice/core";

/**
 * What sandboxes have as their template, or as their snapshot, when they were made from that name. A name that stands
 * for nothing is its own: no sandbox has it.
 */
export function templateIdOf(
  name: string,
  { templates, snapshots }: { readonly templates: Templates; readonly snapshots: TenantSnapshots },
): string {
  const template = templates.all().find((one) => one.name === name || one.aliases.includes(name));
  if (template !== undefined) return template.name;
  return snapshots.list().find((one) => one.name === `${name}:default`)?.id ?? name;
}
