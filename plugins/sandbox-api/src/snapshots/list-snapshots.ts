import type { SnapshotRecord, TenantSnapshots } from "@coppice/core";
import { comparePositions, formatCursor, type ListPosition, parseCursor } from "../bodies/list-cursor.js";
import { parseLimit } from "../sandboxes/list.js";

export interface SnapshotPage {
  readonly snapshots: readonly SnapshotRecord[];
  /** Undefined on the last page. */
  readonly nextToken: string | undefined;
}

/** The page of `GET /snapshots` that a query asks for. @throws SandboxError invalid_argument */
export function listSnapshots(snapshots: TenantSnapshots, query: URLSearchParams): SnapshotPage {
  const [sandboxId] = (query.get("sandboxID") ?? "").split("-");
  const name = query.get("name") ?? "";
  const nextToken = query.get("nextToken") ?? "";
  const limit = parseLimit(query.get("limit"));
  const after = nextToken === "" ? undefined : parseCursor(nextToken, "desc");
  const named = name === "" ? undefined : snapshots.find(name);
  const found = snapshots
    .list()
    .filter(
      (one) =>
        (sandboxId === "" || one.sandboxId === sandboxId) &&
        (name === "" || one.id === named?.id) &&
        (after === undefined || comparePositions(positionOf(one), after) < 0),
    )
    .toSorted((a, b) => comparePositions(positionOf(b), positionOf(a)));
  const page = found.slice(0, limit);
  const last = page.at(-1);
  return {
    snapshots: page,
    nextToken:
      last !== undefined && found.length > page.length ? formatCursor(positionOf(last), "desc") : undefined,
  };
}

function positionOf({ id, takenAtMs }: SnapshotRecord): ListPosition {
  return { id, startedAtMs: takenAtMs };
}
