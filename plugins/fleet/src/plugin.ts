import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import {
  Clock,
  type CreateSandbox,
  endUnlessClaimed,
  messageOf,
  Placements,
  readJsonBody,
  definePlugin,
  type Listener,
  Listeners,
  Peers,
  requestOf,
  SandboxEvents,
  Sandboxes,
  SharedRecords,
  SharedTemplates,
  Snapshots,
  Targets,
  TenantRecords,
  Tenants,
  keptFile,
} from "@coppice/core";
import { type FleetConfig, fleetConfig } from "./fleet-config.js";
import { Membership } from "./membership/membership.js";
import { NODES, nodeOf, CORDONS } from "./membership/node-record.js";
import { SANDBOXES, sandboxOf } from "./records/fleet-sandbox.js";
import { FleetRecords } from "./records/fleet-records.js";
import { FleetTemplates } from "./records/fleet-templates.js";
import { LostSandboxes, tellLosses } from "./records/lost-sandboxes.js";
import { MovedSandboxes } from "./records/moved-sandboxes.js";
import { OwnSandboxes } from "./records/own-sandboxes.js";
import { z } from "zod";
import { FleetPlacement } from "./placement/fleet-placement.js";
import { arrival, Moves, type Moved } from "./placement/moves.js";
import { askedOf, MACHINE, offer, ownOffer } from "./placement/offer.js";
import { type clockAnswer, examineFleet } from "./observe/examine-fleet.js";
import { fleetMetrics } from "./observe/fleet-metrics.js";
import { FleetPeers, isSafeAddress } from "./routing/fleet-peers.js";
import { LookUps, search, searchHere } from "./routing/look-ups.js";
import { connectionsBy } from "./routing/http-peer.js";
import { KeyView } from "./store/key-view.js";
import { openStore } from "./store/open-store.js";
import { FleetSecrets } from "./trust/fleet-secrets.js";
import { fleetCordon, fleetUncordon, fleetStatus, fleetRemove, fleetDrain } from "./verbs/fleet-verbs.js";
import { REASONS } from "./reasons.js";

const PACKAGE = new URL("../package.json", import.meta.url);
const heldName = z.object({ kind: z.string(), reference: z.string(), tenant: z.string() });
const changeMade = z.object({ kind: z.string(), revision: z.number() });
const IDENTITY = "identity";

/** Several servers as one: each has its own sandboxes, and passes requests for those of the others on to them. */
export const plugin = definePlugin({
  name: "fleet",
  reasons: REASONS,
  config: fleetConfig,
  requires: {
    clock: Clock,
    events: SandboxEvents,
    listeners: Listeners,
    peers: Peers,
    placements: Placements,
    sandboxes: Sandboxes,
    sharedRecords: SharedRecords,
    sharedTemplates: SharedTemplates,
    snapshots: Snapshots,
    targets: Targets,
    tenantRecords: TenantRecords,
    tenants: Tenants,
  },
  verbs: {
    fleet: {
      status: fleetStatus,
      cordon: fleetCordon,
      uncordon: fleetUncordon,
      drain: fleetDrain,
      remove: fleetRemove,
    },
  },
  setup(context, services) {
    const { clock, events, listeners, peers, placements, sandboxes, sharedRecords, targets } = services;
    const { config, log } = context;
    const { address, connectTimeout: connectMs } = config;
    const secrets = new FleetSecrets(config);
    const run = randomUUID();
    const node = config.node ?? hostname().toLowerCase();
    const metrics = fleetMetrics({
      registry: context.metrics,
      now: {
        servers: () => nodes.entries(),
        sandboxes: () => found.size,
        leaseMs: () => membership.fence.leftMs,
        revision: () => found.revision,
        connections: () => connections.uses,
      },
    });
    const store = metrics.measured(openStore(config, clock));
    context.onStop(() => store.close());

    const { version } = JSON.parse(readFileSync(PACKAGE, "utf8")) as { readonly version: string };
    let identity = "";
    const membership = new Membership({
      store,
      node,
      identity: () => identity,
      run,
      secrets,
      address: () => address,
      version,
      memoryMiB: MACHINE.memoryMiB,
      leaseMs: config.lease,
      restartMs: config.restart,
      clock,
      log,
    });
    const nodes = new KeyView({
      store,
      prefix: NODES,
      parse(entry, name) {
        const found = nodeOf(entry, secrets);
        if (found !== undefined && found.secret === undefined)
          log.warn(
            { node: name },
            "a record in the fleet's store does not prove the fleet's secret: it is not used",
          );
        return found;
      },
      onChange: (name, now) => {
        router.forget(name);
        if (name === node) membership.recordChanged(now?.revision);
        if (now === undefined) lost.lookSoon();
      },
      log,
    });
    const found = new KeyView({
      store,
      prefix: SANDBOXES,
      parse: sandboxOf,
      onChange: (id, now, before) => {
        metrics.recordChanged(now, before);
        if (now !== undefined) own.onRecord(id, now);
      },
      log,
    });
    const cordons = new KeyView({ store, prefix: CORDONS, parse: () => true as const, log });
    const own = new OwnSandboxes({ store, membership, node, known: found, sandboxes, clock, log });
    const templates = new FleetTemplates({ store, membership, node, nodes, keptMs: config.lostKept, log });
    const lost = new LostSandboxes({
      store,
      membership,
      node,
      nodes,
      sandboxes: found,
      keptMs: config.lostKept,
      tell: () => tellLosses({ store, membership, node, nodes, events, log }),
      clock,
      log,
    });
    // What they stream is of sandboxes that the others take for lost.
    membership.onFenced(() => listeners.cut("this server has lost its place in the fleet"));
    membership.onJoined(() => own.reconcile());
    membership.onJoined(() => lost.lookSoon());
    sharedRecords.use(own);
    const records = new Map<string, FleetRecords>();
    services.tenantRecords.use(async (kind, follower) => {
      const announce = (revision: number) => router.askAll("/heard", { kind, revision });
      const opened = await FleetRecords.open({ store, kind, follower, announce, clock, log });
      records.set(kind, opened);
      return opened;
    });
    context.onStart(async () => {
      requireListener(config, listeners.all());
      const kept = await keptFile(join(context.dataDir(), IDENTITY), randomUUID);
      identity = kept.contents.toString();
      context.onStop(() => Promise.all([nodes.stop(), found.stop(), cordons.stop(), templates.stop()]));
      await nodes.start();
      await found.start();
      await cordons.start();
      await templates.start();
      services.sharedTemplates.use(templates);
      context.onStop(() => membership.stop(own.hasLasting));
      await membership.start();
      context.onStop(() => own.stop());
      context.onStop(() => lost.stop());
    });

    const requireMember = (): void => membership.require();
    const connections = connectionsBy(config);
    context.onStop(() => connections[Symbol.dispose]());
    const router = new FleetPeers({
      listener: config.listener,
      node,
      secrets,
      own: () => ({ identity, run }),
      isInsecure: () => listeners.all().some(({ name, insecure }) => name === config.listener && insecure),
      store,
      nodes,
      sandboxes: found,
      cordons,
      requireMember,
      connections,
      onFailure: metrics.hopFailed,
      connectMs,
      clock,
      gatherMs: config.gatherTimeout,
      lookUps: new LookUps(config.maxLookups, services.tenants),
    });
    context.onStop(() => router.end());
    peers.use(router);
    const placement = new FleetPlacement({
      node,
      nodes,
      cordons,
      offer: (request) => ownOffer(request, sandboxes),
      store,
      requireMember,
      ask: async (name, request, signal) => {
        const limit = AbortSignal.timeout(config.offerTimeout);
        const ended = signal === undefined ? limit : AbortSignal.any([limit, signal]);
        try {
          return offer.parse(await router.named(name).ask("/offers", askedOf(request), ended));
        } catch (error) {
          signal?.throwIfAborted();
          log.debug({ err: error, node: name }, "a server did not say whether it can have a sandbox");
          return undefined;
        }
      },
      fetchAt: async (name, request, signal = new AbortController().signal) => {
        try {
          if (name === node) await sandboxes.check(request)?.fetch(signal);
          else await router.named(name).ask("/fetches", askedOf(request), signal);
          return true;
        } catch (error) {
          signal.throwIfAborted();
          log.warn({ err: error, node: name }, "a server could not fetch a template of another one");
          return false;
        }
      },
      keyKeptMs: config.idempotencyKept,
    });
    placements.use(async (request, signal) => {
      const chosen = await placement.choose(request, signal);
      metrics.placed(chosen !== undefined);
      return chosen;
    });
    // Requests of other servers alone come to it, and they have shown who they are (`arrivalOf`).
    context.guard(config.listener, requireMember);
    const asked = context.http(config.listener);
    asked.post("/searches", async (ctx) => {
      ctx.body = await searchHere(await readJsonBody(ctx.req, search), targets);
    });
    const wanted = z
      .looseObject({ template: z.string(), owner: z.string() })
      .transform((request) => request as unknown as CreateSandbox);
    asked.post("/offers", async (ctx) => {
      ctx.body = ownOffer(await readJsonBody(ctx.req, wanted), sandboxes);
    });
    asked.post("/fetches", async (ctx) => {
      await sandboxes.check(await readJsonBody(ctx.req, wanted))?.fetch(requestOf(ctx).signal);
      ctx.body = {};
    });
    context.http(config.listener).post("/holdings", async (ctx) => {
      ctx.body = { isHere: await peers.has(await readJsonBody(ctx.req, heldName)) };
    });
    asked.post("/heard", async (ctx) => {
      const { kind, revision } = await readJsonBody(ctx.req, changeMade);
      await records.get(kind)?.heard(revision);
      ctx.body = {};
    });
    const moved = new MovedSandboxes({ store, membership, sandboxes, keptMs: config.lostKept, clock, log });
    context.onStop(() => moved[Symbol.dispose]());
    const moves = new Moves({
      sandboxes,
      snapshots: services.snapshots,
      templates: services.sharedTemplates,
      placement,
      moved,
      ask: (name, path, question, signal) => router.named(name).ask(path, question, signal),
      clock,
      log,
    });
    membership.onJoined(() => moves.awaitClaims());
    const named = z.object({ id: z.string() });
    asked.post("/moves", async (ctx) => {
      const { id } = await readJsonBody(ctx.req, named);
      ctx.body = await moves.move(id, requestOf(ctx).signal);
    });
    asked.post("/arrivals", async (ctx) => {
      const request = requestOf(ctx);
      try {
        const made = await moves.arrive(await readJsonBody(ctx.req, arrival), request.signal);
        endUnlessClaimed(sandboxes, [made], { request, response: ctx.res });
        ctx.body = { id: made.record.id, server: node } satisfies Moved;
      } catch (error) {
        log.warn({ err: error }, "a sandbox of another server could not be made");
        ctx.body = { refusal: messageOf(error) } satisfies Moved;
      }
    });
    asked.post("/ends", async (ctx) => {
      await sandboxes.kill((await readJsonBody(ctx.req, named)).id);
      ctx.body = {};
    });
    asked.post("/clock", (ctx) => {
      ctx.body = { nowMs: clock.now() } satisfies z.infer<typeof clockAnswer>;
    });
    context.health("fleet", async () => requireMember());
    context.diagnose("fleet", ({ signal }) =>
      examineFleet({ store, secrets, connections, connectMs, leaseMs: config.lease, clock, signal }),
    );
  },
});

/** @throws Error for a listener that is missing, or an address or a listener that others reach without TLS and without a word of the operator. */
function requireListener(
  { listener, address }: Pick<FleetConfig, "listener" | "address">,
  listeners: readonly Listener[],
): void {
  const found = listeners.find(({ name }) => name === listener);
  if (found === undefined)
    throw new Error(`listeners has no '${listener}', where other servers reach this one`);
  if (!found.isLoopback && !found.tls && !found.insecure)
    throw new Error(
      `listener '${listener}' is on ${found.host} without TLS, and its requests have clients' keys and data: give it a certificate, or say listeners.${listener}.insecure: true`,
    );
  if (!found.insecure && !isSafeAddress(address))
    throw new Error(
      `fleet.address is ${address}, which others reach without TLS: give it https, or say listeners.${listener}.insecure: true`,
    );
}
