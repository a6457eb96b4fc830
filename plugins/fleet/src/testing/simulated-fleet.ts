import type { CreateSandbox, Sandboxes } from "@coppice/core";
import { SeededRandom } from "@coppice/core/testing";
import type { NodeRecord } from "../membership/node-record.js";
import { FleetPlacement } from "../placement/fleet-placement.js";
import { askedOf, type Offer, offer, ownOffer } from "../placement/offer.js";
import type { FleetStore } from "../store/fleet-store.js";

export interface SimulationOptions {
  readonly servers: number;
  readonly sandboxes: number;
  readonly seed: number;
  /** Of each server's machine, in turns. */
  readonly memoriesMiB?: readonly [number, ...number[]];
  /** Memory limits of sandboxes; each gets one of them by chance. */
  readonly limitsMiB?: readonly [number, ...number[]];
  /** Servers that clients ask; all when absent. */
  readonly asked?: number;
  /** Further sandboxes, each of which is made when another one has ended. */
  readonly replaced?: number;
  /** What becomes of the offers of other servers, for tests that plant a fault. */
  readonly heard?: (offered: Offer) => Offer;
}

/** How sandboxes are spread: their memory as part of that of their server's machine, beside that part of the fleet. */
export interface Spread {
  /** Of the fullest server: 1 when all are as full as each other. */
  readonly most: number;
  /** Of the emptiest one. */
  readonly least: number;
  /** Part of the sandboxes that are made where the client asked. */
  readonly kept: number;
}

/** Creations that go on at the same time: none of them knows of the others. */
const AT_ONCE = 10;
const DEFAULT_MEMORY_MIB = 65_536;
const DEFAULT_LIMIT_MIB = 512;

/** Places sandboxes on servers that are in this process and answer at once, by the code that servers of a fleet run. */
export async function simulateFleet(options: SimulationOptions): Promise<Spread> {
  const { servers: count, sandboxes, asked = count, replaced = 0 } = options;
  const random = new SeededRandom(options.seed);
  const servers = startServers(options, random);
  const { limitsMiB = [DEFAULT_LIMIT_MIB] } = options;
  const alive: { readonly server: SimulatedServer; readonly limitMiB: number }[] = [];
  let kept = 0;
  const make = async (): Promise<void> => {
    const first = servers[random.below(asked)];
    const limitMiB = random.of(limitsMiB);
    const request = { template: "base", timeoutMs: undefined, secure: true, limits: { memoryMiB: limitMiB } };
    const name = await first?.placement.choose(request);
    const server = name === undefined ? first : servers[Number(name)];
    if (server === undefined) throw new Error(`there is no server '${name}'`);
    if (server === first) kept += 1;
    server.add(limitMiB);
    alive.push({ server, limitMiB });
  };
  const end = (): void => {
    const at = random.below(alive.length);
    const ended = alive[at];
    ended?.server.remove(ended.limitMiB);
    const last = alive.pop();
    if (last !== undefined && at < alive.length) alive[at] = last;
  };
  const atOnce = Math.min(AT_ONCE, sandboxes);
  for (let made = 0; made < sandboxes + replaced; made += atOnce) {
    const now = Math.min(atOnce, sandboxes + replaced - made);
    while (alive.length + now > sandboxes) end();
    await Promise.all(Array.from({ length: now }, make));
  }
  const total = (of: (server: SimulatedServer) => number): number =>
    servers.reduce((sum, server) => sum + of(server), 0);
  const even = total(({ usedMiB }) => usedMiB) / total(({ memoryMiB }) => memoryMiB);
  const shares = servers.map(({ usedMiB, memoryMiB }) => usedMiB / memoryMiB / even);
  return { most: Math.max(...shares), least: Math.min(...shares), kept: kept / (sandboxes + replaced) };
}

interface SimulatedServer {
  readonly placement: FleetPlacement;
  readonly memoryMiB: number;
  readonly usedMiB: number;
  add(limitMiB: number): void;
  remove(limitMiB: number): void;
}

function startServers(
  { servers: count, memoriesMiB = [DEFAULT_MEMORY_MIB], heard = (offered) => offered }: SimulationOptions,
  random: SeededRandom,
): readonly SimulatedServer[] {
  const nodes = new Map<string, NodeRecord>();
  const offers = new Map<string, (request: CreateSandbox) => Offer>();
  return Array.from({ length: count }, (_, index): SimulatedServer => {
    const node = String(index);
    const memoryMiB = memoriesMiB[index % memoriesMiB.length] ?? memoriesMiB[0];
    const own: { readonly record: { readonly limits: { readonly memoryMiB: number } } }[] = [];
    const sandboxes = { check: () => {}, list: () => own } as unknown as Sandboxes;
    const machine = { memoryMiB, processors: 1, processes: () => 0 };
    const ownOffered = (request: CreateSandbox): Offer => ownOffer(request, sandboxes, machine);
    offers.set(node, ownOffered);
    const facts = { identity: node, run: node, address: "", version: "0.0.0", joinedAtMs: 0, memoryMiB };
    nodes.set(node, { ...facts, revision: 1, secret: "of all" });
    const placement = new FleetPlacement({
      node,
      nodes,
      cordons: new Map<string, true>(),
      offer: ownOffered,
      // For requests with an `Idempotency-Key`, of which there are none.
      store: {} as FleetStore,
      keyKeptMs: 0,
      fetchAt: async () => true,
      requireMember: () => {},
      ask: async (name, request) => {
        const answer = offers.get(name)?.(askedOf(request));
        return heard(offer.parse(JSON.parse(JSON.stringify(answer))));
      },
      random: (limit) => random.below(limit),
    });
    return {
      placement,
      memoryMiB,
      get usedMiB() {
        return own.reduce((sum, { record }) => sum + record.limits.memoryMiB, 0);
      },
      add: (limitMiB) => void own.push({ record: { limits: { memoryMiB: limitMiB } } }),
      remove(limitMiB) {
        const at = own.findIndex(({ record }) => record.limits.memoryMiB === limitMiB);
        own.splice(at, 1);
      },
    };
  });
}
