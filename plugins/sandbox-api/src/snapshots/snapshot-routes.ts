import {
  firstPage,
  type Page,
  pageFields,
  parseInput,
  parseSandboxId,
  readJsonBody,
  requestOf,
  type Router,
  type SnapshotRecord,
  type TenantSnapshots,
} from "@coppice/core";
import { z } from "zod";
import { comparePositions, formatCursor, type ListPosition, parseCursor } from "../bodies/list-cursor.js";
import type { ApiServices } from "../sandboxes/api-services.js";

const takeBody = z.object({ name: z.string().min(1).max(256).nullish() });
const listQuery = z.object({
  ...pageFields,
  sandboxID: z.string().default(""),
  name: z.string().default(""),
});

export function mountSnapshots(router: Router, { config, sandboxes, snapshots }: ApiServices): void {
  router.post("/sandboxes/:id/snapshots", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    sandboxes(ctx).get(id);
    const { name } = await readJsonBody(ctx.req, takeBody, { limitBytes: config.maxBody, empty: {} });
    ctx.body = snapshotBody(await snapshots(ctx).take(id, name ?? undefined));
    ctx.status = 201;
  });

  router.get("/snapshots", (ctx) => {
    const page = listSnapshots(snapshots(ctx), requestOf(ctx).url.searchParams);
    if (page.nextToken !== undefined) ctx.set("X-Next-Token", page.nextToken);
    ctx.body = page.entries.map(snapshotBody);
  });
}

/** The page of `GET /snapshots` that a query asks for. @throws SandboxError invalid_argument */
function listSnapshots(snapshots: TenantSnapshots, query: URLSearchParams): Page<SnapshotRecord> {
  const { limit, nextToken, sandboxID, name } = parseInput(listQuery, Object.fromEntries(query));
  const [sandboxId] = sandboxID.split("-");
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
  return firstPage(found, limit, (last) => formatCursor(positionOf(last), "desc"));
}

function positionOf({ id, takenAtMs }: SnapshotRecord): ListPosition {
  return { id, startedAtMs: takenAtMs };
}

/** A snapshot in answers. Its id is a template reference: sandboxes are created from it. */
function snapshotBody({ id, name }: SnapshotRecord) {
  return {
    snapshotID: name ?? `${id}:default`,
    names: name === undefined ? [] : [name],
    // E2B's clients ask for that with `memory: false`: files are kept, processes are not.
    memory: false,
  };
}
