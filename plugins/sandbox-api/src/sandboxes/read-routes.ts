import {
  gatherAnswers,
  type LiveSandbox,
  mergedPage,
  parseInput,
  parseSandboxId,
  requestOf,
  type Router,
  SandboxError,
  type SandboxRecord,
  type Snapshots,
  type Templates,
  tenantOf,
} from "@coppice/core";
import { z } from "zod";
import { listedSandboxBody, metricBody, sandboxDetailBody } from "../bodies/sandbox-body.js";
import type { ApiServices, Context } from "./api-services.js";
import {
  comparePositions,
  formatCursor,
  type ListPage,
  type ListPosition,
  type ListQuery,
  listSandboxes,
  parseLegacyListQuery,
  parseListQuery,
} from "./list.js";

const MAX_IDS = 100;

const seconds = z
  .string()
  .regex(/^\d{0,15}$/, "expected unix seconds")
  .transform((text) => (text === "" ? undefined : Number(text)))
  .optional();

/** Both ends are included; an absent one is open. */
const metricsWindow = z
  .object({ start: seconds, end: seconds })
  .refine(({ start = 0, end = Infinity }) => start <= end, {
    path: ["start"],
    error: "it is later than end",
  });

const metricsAnswer = z.object({ sandboxes: z.record(z.string(), z.unknown()) });

/** Routes that list and describe sandboxes. */
export function mountReads(
  router: Router,
  {
    backends,
    templates,
    capacities,
    history,
    domain,
    sandboxes,
    everySandbox,
    snapshots,
    peers,
  }: ApiServices,
): void {
  const list = async (ctx: Context, query: ListQuery): Promise<void> => {
    const { ofAllTenants } = query;
    const page = listSandboxes(ofAllTenants ? everySandbox(ctx) : sandboxes(ctx).list(), query);
    const [bodies, others] = await Promise.all([
      listBody(page.sandboxes, { capacities, templates, ofAllTenants }),
      gatherAnswers(ctx, peers),
    ]);
    const whole = wholePage(bodies, page, others, query);
    if (whole.nextToken !== undefined) ctx.set("X-Next-Token", whole.nextToken);
    if (whole.totalRunning !== undefined) ctx.set("X-Total-Running", String(whole.totalRunning));
    ctx.body = whole.bodies;
  };

  router.get("/sandboxes", (ctx) => list(ctx, parseLegacyListQuery(requestOf(ctx).url.searchParams)));

  router.get("/v2/sandboxes", async (ctx) => {
    const query = parseListQuery(requestOf(ctx).url.searchParams);
    const owned = { templates, snapshots: snapshots(ctx), tenant: tenantOf(ctx) };
    await list(ctx, { ...query, template: query.template && templateIdOf(query.template, owned) });
  });

  // Before the route of one sandbox, which would take the word for an id.
  router.get("/sandboxes/metrics", async (ctx) => {
    const ids = parseSandboxIds(requestOf(ctx).url.searchParams);
    const found = [...ids].flatMap((id) => sandboxes(ctx).find(id) ?? []);
    const told = await Promise.all(
      found.map(async (sandbox) => {
        const latest = (await history.of(sandbox)).at(-1);
        return latest === undefined ? [] : [[sandbox.record.id, metricBody(latest)] as const];
      }),
    );
    const answers = await gatherAnswers(ctx, peers);
    const others = answers.map(({ body }) => metricsAnswer.parse(body).sandboxes);
    ctx.body = { sandboxes: Object.assign(Object.fromEntries(told.flat()), ...others) as object };
  });

  router.get("/sandboxes/:id", async (ctx) => {
    const sandbox = sandboxes(ctx).get(parseSandboxId(ctx.params["id"]));
    const backend = backends.all().find(({ name }) => name === sandbox.record.backend);
    ctx.body = sandboxDetailBody(sandbox, {
      capacity: await capacities.of(sandbox),
      alias: aliasOf(sandbox.record, templates),
      carrier: ctx,
      domain: domain(),
      isOffline: backend?.offline === true,
    });
  });

  router.get("/sandboxes/:id/metrics", async (ctx) => {
    const sandbox = sandboxes(ctx).get(parseSandboxId(ctx.params["id"]));
    const query = Object.fromEntries(requestOf(ctx).url.searchParams);
    const { start = 0, end = Infinity } = parseInput(metricsWindow, query);
    const samples = await history.of(sandbox);
    ctx.body = samples
      .filter(({ atMs }) => Math.floor(atMs / 1000) >= start && Math.floor(atMs / 1000) <= end)
      .map(metricBody);
  });
}

async function listBody(
  sandboxes: readonly LiveSandbox[],
  {
    capacities,
    templates,
    ofAllTenants,
  }: Pick<ApiServices, "capacities" | "templates"> & Pick<ListQuery, "ofAllTenants">,
) {
  return Promise.all(
    sandboxes.map(async (sandbox) => {
      const alias = aliasOf(sandbox.record, templates);
      const body = listedSandboxBody(sandbox, { capacity: await capacities.of(sandbox), alias });
      return ofAllTenants ? { ...body, tenantID: sandbox.record.owner } : body;
    }),
  );
}

/** The ids of `GET /sandboxes/metrics`, in either form of a list. @throws SandboxError invalid_argument */
function parseSandboxIds(query: URLSearchParams): ReadonlySet<string> {
  const ids = query
    .getAll("sandbox_ids")
    .flatMap((value) => value.split(","))
    .map((value) => value.trim())
    .filter((value) => value !== "");
  if (ids.length === 0 || ids.length > MAX_IDS)
    throw new SandboxError("request_invalid", `validation error: sandbox_ids: expected 1 to ${MAX_IDS} ids`);
  return new Set(ids.map(parseSandboxId));
}

/** The name of a sandbox's template for people; its id when the template is gone. */
function aliasOf({ template, owner, build }: SandboxRecord, templates: Templates): string {
  // Without a build it is one of the configuration, whose id is its name.
  if (build === undefined) return template;
  try {
    return templates.find(`${template}:${build.id}`, owner).aliases[0] ?? template;
  } catch {
    return template;
  }
}

/**
 * The template or snapshot id of sandboxes made from a name. An unknown name is returned unchanged: no sandbox has it.
 */
function templateIdOf(
  name: string,
  {
    templates,
    snapshots,
    tenant,
  }: {
    readonly templates: Templates;
    readonly snapshots: ReturnType<Snapshots["of"]>;
    readonly tenant: string;
  },
): string {
  const template = templates.all(tenant).find((one) => one.name === name || one.aliases.includes(name));
  if (template !== undefined) return template.name;
  return snapshots.list().find((one) => one.name === `${name}:default`)?.id ?? name;
}

/** One sandbox of a list; the rest of it is passed on as another server wrote it. */
const listed = z.looseObject({ sandboxID: z.string(), startedAt: z.iso.datetime() });

type Listed = z.infer<typeof listed>;

interface WholePage extends Pick<ListPage, "nextToken" | "totalRunning"> {
  readonly bodies: readonly object[];
}

/** The page of a list that all servers have a part in: each has sent its own page of the same query. */
function wholePage(
  bodies: readonly Listed[],
  { nextToken, totalRunning }: Pick<ListPage, "nextToken" | "totalRunning">,
  answers: Awaited<ReturnType<typeof gatherAnswers>>,
  { order, limit }: Pick<ListQuery, "order" | "limit">,
): WholePage {
  const direction = order === "asc" ? 1 : -1;
  const others = answers.flatMap(({ body }) => z.array(listed).parse(body));
  const page = mergedPage({ entries: bodies, nextToken }, answers, others, {
    limit,
    compare: (a, b) => direction * comparePositions(positionOf(a), positionOf(b)),
    tokenOf: (last) => formatCursor(positionOf(last), order),
  });
  return {
    bodies: page.entries,
    nextToken: page.nextToken,
    totalRunning:
      totalRunning === undefined
        ? undefined
        : answers.reduce((sum, { headers }) => sum + Number(headers["x-total-running"] ?? 0), totalRunning),
  };
}

function positionOf({ sandboxID: id, startedAt }: Listed): ListPosition {
  return { id, startedAtMs: Date.parse(startedAt) };
}
