import { parseSandboxId, type RequestCarrier, type Sandboxes, sandboxesOf } from "@coppice/core";

/**
 * The id of a sandbox of the sender, which may have ended: its log is kept longer.
 * @throws SandboxError not_found for an unknown sandbox, and for one of another tenant.
 */
export async function knownSandboxId(
  carrier: RequestCarrier,
  { sandboxes, id }: { readonly sandboxes: Sandboxes; readonly id: string | undefined },
): Promise<string> {
  const own = sandboxesOf(carrier, sandboxes);
  const sandboxId = parseSandboxId(id);
  if (!(await own.remembers(sandboxId))) own.get(sandboxId);
  return sandboxId;
}
