import type { Templates, TenantSnapshots } from "@coppice/core";

/**
 * The template or snapshot id of sandboxes made from a name. An unknown name is returned unchanged: no sandbox has it.
 */
export function templateIdOf(
  name: string,
  {
    templates,
    snapshots,
    tenant,
  }: { readonly templates: Templates; readonly snapshots: TenantSnapshots; readonly tenant: string },
): string {
  const template = templates.all(tenant).find((one) => one.name === name || one.aliases.includes(name));
  if (template !== undefined) return template.name;
  return snapshots.list().find((one) => one.name === `${name}:default`)?.id ?? name;
}
