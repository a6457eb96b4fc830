import {
  type Capacities,
  ClientCreations,
  type Clock,
  gatherAnswers,
  type LiveSandbox,
  type Peers,
  readJsonBody,
  type Router,
  SandboxError,
  type Sandboxes,
  sandboxesOf,
  type SandboxRecord,
  tenantOf,
} from "@coppice/core";
import { z } from "zod";
import type { CommandsV1Config } from "../commands-v1-config.js";
import { stopSandbox, nameBelow, type NamedSandboxes } from "./named-sandboxes.js";
import {
  autoStopMinutes,
  createBody,
  HOUR_MS,
  lifeOf,
  sandboxName,
  toCreateSandbox,
  createWithWorkdir,
  makeWorkdir,
} from "./create-body.js";
import type { NamedSandbox } from "../store/commands-v1-store.js";

interface SandboxRoutesOptions {
  readonly named: NamedSandboxes;
  readonly sandboxes: Sandboxes;
  readonly capacities: Capacities;
  readonly peers: Peers;
  readonly clock: Clock;
  readonly config: CommandsV1Config;
}

const MINUTE_MS = 60_000;
/** Kinds of `Holding`: what a path has after `/sandboxes/`, and what a creation may take. */
const [KEPT, NAME] = ["sandbox of commands-v1", "sandbox name"] as const;

const changeBody = z.object({ name: sandboxName.nullish(), auto_stop_minutes: autoStopMinutes.nullish() });

/** `null` and an empty body are accepted where nothing is said. */
const nothing = z.union([z.null(), z.object({})]);

/** Routes that create, list, change, stop, start and delete sandboxes. */
export function mountSandboxes(
  router: Router,
  { named, sandboxes, capacities, peers, clock, config }: SandboxRoutesOptions,
): void {
  const path = `${config.basePath}/sandboxes`;
  const limitBytes = config.maxBody;
  const createSchema = createBody(config);
  const extendBody = z.object({
    auto_delete_hours: z
      .number()
      .positive()
      .max(config.maxAutoDelete / HOUR_MS)
      .nullish(),
    deadline: z.iso.datetime({ offset: true }).nullish(),
  });
  const creations = new ClientCreations({
    clock,
    keptMs: config.idempotencyKept,
    most: config.maxIdempotencyKeys,
  });
  const bodyOf = async (sandbox: LiveSandbox) =>
    sandboxBody(sandbox, {
      named: named.describe(sandbox),
      capacity: await capacities.of(sandbox),
      lastActivityMs: named.lastActivityMs(sandbox),
    });

  peers.hold({
    kind: KEPT,
    surface: "api",
    inPath: nameBelow(path),
    has: (reference, tenant) => named.has(tenant, reference),
  });
  peers.hold({
    kind: NAME,
    surface: "api",
    inPath: () => undefined,
    has: (reference, tenant) => named.isTaken(tenant, reference),
  });

  router.post(path, async (ctx) => {
    const body = await readJsonBody(ctx.req, createSchema, { limitBytes });
    // A name is of one sandbox on all servers.
    if (typeof body.name === "string") await peers.requireHere(ctx, { kind: NAME, reference: body.name });
    const { autoStopMs, lifeMs } = lifeOf(body, config);
    const own = sandboxesOf(ctx, sandboxes);
    const wanted = toCreateSandbox(body);
    const { workdir } = config;
    const asked = {
      owner: tenantOf(ctx),
      name: body.name ?? undefined,
      tier: body.tier ?? "ephemeral",
      autoStopMs,
      deadlineMs: clock.now() + lifeMs,
      workdir,
    } as const;
    const create: Sandboxes["create"] = (request, signal) =>
      named.create(asked, () => createWithWorkdir(own, request, { workdir, signal }));
    const sandbox = await creations.create(ctx, { own: { ...own, create }, wanted, asked: body });
    // A server that was killed may have made it, and no more.
    if (!named.knows(sandbox)) {
      await named.create(asked, async () => {
        if (sandbox.record.state === "running") await makeWorkdir(sandbox, workdir);
        return sandbox;
      });
    }
    ctx.status = 201;
    ctx.body = await bodyOf(sandbox);
  });

  router.get(path, async (ctx) => {
    const { name } = ctx.query;
    const all = sandboxesOf(ctx, sandboxes).list();
    const wanted = all.filter((sandbox) => name === undefined || named.describe(sandbox).name === name);
    const answers = await gatherAnswers(ctx, peers);
    const others = answers.flatMap(({ body }) => z.array(z.unknown()).parse(body));
    ctx.body = [...(await Promise.all(wanted.map(bodyOf))), ...others];
  });

  router.get(`${path}/:id`, async (ctx) => {
    ctx.body = await bodyOf(named.get(ctx, ctx.params["id"]));
  });

  router.patch(`${path}/:id`, async (ctx) => {
    const sandbox = named.get(ctx, ctx.params["id"]);
    const { name, auto_stop_minutes: minutes } = await readJsonBody(ctx.req, changeBody, { limitBytes });
    named.change(sandbox, {
      ...(typeof name === "string" && { name }),
      ...(typeof minutes === "number" && { autoStopMs: minutes * MINUTE_MS }),
    });
    ctx.body = await bodyOf(sandbox);
  });

  router.delete(`${path}/:id`, async (ctx) => {
    const { record } = named.get(ctx, ctx.params["id"]);
    await sandboxesOf(ctx, sandboxes).kill(record.id);
    ctx.status = 204;
  });

  router.post(`${path}/:id/stop`, async (ctx) => {
    const sandbox = named.get(ctx, ctx.params["id"]);
    await readJsonBody(ctx.req, nothing, { limitBytes, empty: {} });
    const { tier } = named.describe(sandbox);
    const own = sandboxesOf(ctx, sandboxes);
    await stopSandbox(own, sandbox, tier);
    const stopped = own.find(sandbox.record.id);
    if (stopped === undefined) ctx.status = 204;
    else ctx.body = await bodyOf(stopped);
  });

  router.post(`${path}/:id/start`, async (ctx) => {
    const { id, timeoutMs } = named.get(ctx, ctx.params["id"]).record;
    await readJsonBody(ctx.req, nothing, { limitBytes, empty: {} });
    const own = sandboxesOf(ctx, sandboxes);
    await own.resume(id, timeoutMs);
    ctx.body = await bodyOf(own.get(id));
  });

  router.post(`${path}/:id/extend`, async (ctx) => {
    const sandbox = named.get(ctx, ctx.params["id"]);
    const body = await readJsonBody(ctx.req, extendBody, { limitBytes });
    const hours = body.auto_delete_hours ?? undefined;
    const wanted = hours === undefined ? Date.parse(body.deadline ?? "") : clock.now() + hours * HOUR_MS;
    if (Number.isNaN(wanted)) throw invalid("expected auto_delete_hours or deadline");
    const lifeMs = wanted - clock.now();
    if (lifeMs <= 0) throw invalid("the deadline is over");
    if (lifeMs > config.maxAutoDelete)
      throw invalid(`the deadline is more than ${config.maxAutoDelete / HOUR_MS} hours away`);
    // The record of a sandbox that another interface made has its end.
    if (sandbox.record.timeoutMs === undefined) named.change(sandbox, { deadlineMs: wanted });
    else await sandboxesOf(ctx, sandboxes).setTimeout(sandbox.record.id, lifeMs);
    ctx.body = await bodyOf(sandbox);
  });
}

function invalid(text: string): SandboxError {
  return new SandboxError("request_invalid", `validation error: ${text}`);
}

const STATES = { creating: "creating", running: "running", paused: "stopped", killing: "deleting" } as const;

interface SandboxBodyOptions {
  readonly named: NamedSandbox;
  readonly capacity: Awaited<ReturnType<Capacities["of"]>>;
  readonly lastActivityMs: number;
}

/** A sandbox, as the contract has it. */
function sandboxBody({ record }: LiveSandbox, { named, capacity, lastActivityMs }: SandboxBodyOptions) {
  const ends = [named.deadlineMs, record.endsAtMs].filter((time) => time !== undefined);
  return {
    id: record.id,
    name: named.name,
    state: STATES[record.state satisfies SandboxRecord["state"]],
    tier: named.tier,
    image: record.template,
    created_at: new Date(record.startedAtMs).toISOString(),
    last_activity_at: new Date(lastActivityMs).toISOString(),
    auto_stop_minutes: named.autoStopMs / 60_000,
    disk_gb: Math.round(capacity.diskMiB / 1024),
    cpu_milli: Math.round(capacity.cpuCount * 1000),
    memory_mb: Math.round(capacity.memoryMiB),
    ...(ends.length > 0 && { deadline: new Date(Math.min(...ends)).toISOString() }),
    ...(named.workdir !== undefined && { workdir: named.workdir }),
  };
}
