import { SandboxError, type TenantSnapshots } from "@coppice/core";

/** Removes the snapshot that a template reference means. @throws SandboxError not_found, invalid_argument */
export async function removeSnapshot(snapshots: TenantSnapshots, reference: string): Promise<void> {
  const found = snapshots.find(reference);
  if (found === undefined) throw new SandboxError("not_found", `template '${reference}' not found`);
  await snapshots.remove(found.id);
}
