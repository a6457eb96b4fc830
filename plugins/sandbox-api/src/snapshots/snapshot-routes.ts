import {
  firstPage,
  gatherAnswers,
  mergedPage,
  pageFields,
  parseInput,
  parseSandboxId,
  parseTemplateReference,
  readJsonBody,
  requestOf,
  type Router,
  type SnapshotRecord,
  type Snapshots,
} from "@coppice/core";
import { z } from "zod";
import { comparePositions, formatCursor, type ListPosition, parseCursor } from "../sandboxes/list.js";
import type { ApiServices } from "../sandboxes/api-services.js";

type TenantSnapshots = ReturnType<Snapshots["of"]>;

const takeBody = z.object({ name: z.string().min(1).max(256).nullish() });
/** One snapshot as another server wrote it, with its place in the list. */
const listed = z.looseObject({ id: z.string(), takenAtMs: z.number() });

const listQuery = z.object({
  ...pageFields,
  sandboxID: z.string().default(""),
  name: z.string().default(""),
});

export function mountSnapshots(router: Router, { config, sandboxes, snapshots, peers }: ApiServices): void {
  router.post("/sandboxes/:id/snapshots", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    sandboxes(ctx).get(id);
    const { name } = await readJsonBody(ctx.req, takeBody, { limitBytes: config.maxBody, empty: {} });
    ctx.body = snapshotBody(await snapshots(ctx).take(id, name ?? undefined));
    ctx.status = 201;
  });

  router.get("/snapshots", async (ctx) => {
    const { url, isPassedOn } = requestOf(ctx);
    const query = parseInput(listQuery, Object.fromEntries(url.searchParams));
    const found = listSnapshots(snapshots(ctx), query);
    const entries = found.entries.map((one) => ({
      id: one.id,
      takenAtMs: one.takenAtMs,
      ...snapshotBody(one),
    }));
    const answers = await gatherAnswers(ctx, peers);
    const others = answers.flatMap(({ body }) => z.array(listed).parse(body));
    const page = mergedPage<z.infer<typeof listed>>({ ...found, entries }, answers, others, {
      limit: query.limit,
      compare: (a, b) => comparePositions(positionOf(b), positionOf(a)),
      tokenOf: (last) => formatCursor(positionOf(last), "desc"),
    });
    if (page.nextToken !== undefined) ctx.set("X-Next-Token", page.nextToken);
    // Another server puts them in order; clients get no more than E2B tells.
    ctx.body = isPassedOn ? page.entries : page.entries.map(withoutPlace);
  });
}

/** The page of `GET /snapshots` that a query asks for. @throws SandboxError invalid_argument */
function listSnapshots(
  snapshots: TenantSnapshots,
  { limit, nextToken, sandboxID, name }: z.infer<typeof listQuery>,
): ReturnType<typeof firstPage<SnapshotRecord>> {
  const [sandboxId] = sandboxID.split("-");
  const after = nextToken === "" ? undefined : parseCursor(nextToken, "desc");
  const named = name === "" ? undefined : findNamed(snapshots, name);
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

/** The snapshot of a name; without a tag the newest one, whichever tag it has. */
function findNamed(snapshots: TenantSnapshots, text: string): SnapshotRecord | undefined {
  const { name } = parseTemplateReference(text);
  const newest = text.includes(":") ? undefined : snapshots.list().find((one) => bareName(one) === name);
  return newest ?? snapshots.find(text);
}

function bareName({ name }: SnapshotRecord): string | undefined {
  return name?.split(":")[0];
}

function positionOf({ id, takenAtMs }: Pick<SnapshotRecord, "id" | "takenAtMs">): ListPosition {
  return { id, startedAtMs: takenAtMs };
}

/** A snapshot in answers. Its id is a template reference: sandboxes are created from it. */
function snapshotBody(snapshot: SnapshotRecord) {
  const { id, name } = snapshot;
  return {
    snapshotID: name ?? `${id}:default`,
    // Without the tag, unlike the id.
    names: name === undefined ? [] : [bareName(snapshot)],
    // E2B's clients ask for that with `memory: false`: files are kept, processes are not.
    memory: false,
  };
}

function withoutPlace(one: z.infer<typeof listed>): object {
  return Object.fromEntries(Object.entries(one).filter(([name]) => !Object.hasOwn(listed.shape, name)));
}
