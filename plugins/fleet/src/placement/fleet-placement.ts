import { randomInt } from "node:crypto";
import { type CreateSandbox, digestOf } from "@coppice/core";
import { NODES, type NodeRecord, openServers } from "../membership/node-record.js";
import type { Check, FleetStore } from "../store/fleet-store.js";
import type { KeyView } from "../store/key-view.js";
import { MACHINE, type Offer } from "./offer.js";
import { unavailable } from "../reasons.js";

interface FleetPlacementOptions {
  readonly node: string;
  readonly nodes: Pick<KeyView<NodeRecord>, "entries" | "get">;
  readonly cordons: Pick<KeyView<true>, "get">;
  readonly offer: (request: CreateSandbox) => Offer;
  readonly store: FleetStore;
  readonly requireMember: () => void;
  /** Asks another server; undefined when it does not answer in time. */
  readonly ask: (node: string, request: CreateSandbox, signal?: AbortSignal) => Promise<Offer | undefined>;
  /** Asks another server to fetch the template of a request; false when it could not. */
  readonly fetchAt: (node: string, request: CreateSandbox, signal?: AbortSignal) => Promise<boolean>;
  /** How long the server of an `Idempotency-Key` is remembered. */
  readonly keyKeptMs: number;
  /** A number from 0 to below the limit; an unguessable one when absent. */
  readonly random?: (limit: number) => number;
}

/** Keys with the server that a client's `Idempotency-Key` led to. */
const IDEMPOTENCY = "idempotency/";
/** Others that are asked at once. With two, the emptiest of a thousand stayed an eighth emptier than the rest. */
const ASKED = 3;
/** When none of these can, the rest is asked, so many at a time. */
const BATCH = 8;
/** A foreign server is a hop further: it has to be better by such a part of what this one has to do. */
const OWN_ADVANTAGE = 0.03;

/** Chooses the server of a new sandbox: the better one of a few that can have it. */
export class FleetPlacement {
  readonly #options: FleetPlacementOptions;

  constructor(options: FleetPlacementOptions) {
    this.#options = options;
  }

  /**
   * @returns the name of another server; undefined for this one, also when none can have it: it says why.
   * @throws SandboxError fleet_unavailable when this one alone could, and is cordoned.
   */
  async choose(request: CreateSandbox, signal?: AbortSignal): Promise<string | undefined> {
    const { node, requireMember } = this.#options;
    requireMember();
    const { idempotency, owner = "" } = request;
    const chosen =
      idempotency === undefined
        ? await this.#first(request, signal)
        : await this.#once(
            `${IDEMPOTENCY}${digestOf(JSON.stringify([owner, idempotency.key]))}`,
            request,
            signal,
          );
    return chosen === node ? undefined : chosen;
  }

  /** Repetitions of a request come to the same server, whichever they ask, as long as that one is in the fleet. */
  async #once(
    key: string,
    request: CreateSandbox,
    signal: AbortSignal | undefined,
  ): Promise<string | undefined> {
    const { store, node, nodes, keyKeptMs } = this.#options;
    const known = await store.get(key);
    if (known !== undefined && nodes.get(known.value) !== undefined) return known.value;
    const checks: readonly Check[] =
      known === undefined
        ? [{ key, createRevision: 0 }]
        : // Whatever that server made is lost.
          [
            { key, modRevision: known.modRevision },
            { key: NODES + known.value, createRevision: 0 },
          ];
    const value = (await this.#first(request, signal)) ?? node;
    const lease = await store.grant(keyKeptMs);
    const revision = await store.commit(checks, [{ put: key, value, lease }]);
    if (revision !== undefined) return value;
    await store.revoke(lease);
    return (await store.get(key))?.value;
  }

  async #first(request: CreateSandbox, signal: AbortSignal | undefined): Promise<string | undefined> {
    const { node, cordons, offer } = this.#options;
    const own = offer(request);
    const isCordoned = cordons.get(node) !== undefined;
    const isOffered = "load" in own && !isCordoned;
    const offers = isOffered ? [{ ...own, name: node, load: own.load * (1 - OWN_ADVANTAGE) }] : [];
    const [only, ...more] = this.#others();
    // There is no choice, and it says itself why it cannot.
    if (!isOffered && only !== undefined && more.length === 0) return only.name;
    const { best, refusals } = await this.#best(request, offers, signal);
    if (best !== undefined) return best;
    if ("load" in own && isCordoned)
      throw unavailable(`server '${node}' gets no new sandboxes, and no other one can have this one`);
    if ("load" in own || !isUnknown(own)) return undefined;
    // One that has the template knows better what is wrong.
    return refusals.find((refusal) => !isUnknown(refusal))?.name;
  }

  /** Chooses another server. @returns undefined when none can have it */
  async elsewhere(request: CreateSandbox, signal: AbortSignal): Promise<string | undefined> {
    return (await this.#best(request, [], signal)).best;
  }

  /** @param offers first ones, before others are asked */
  async #best(
    request: CreateSandbox,
    offers: Named<Offered>[],
    signal: AbortSignal | undefined,
  ): Promise<{ readonly best: string | undefined; readonly refusals: readonly Named<Refusal>[] }> {
    const { ask, random = randomInt } = this.#options;
    const others = this.#others();
    const refusals: Named<Refusal>[] = [];
    for (let count = ASKED; ; count = BATCH) {
      const asked = draw(others, count, random).map(async (name) => ({
        name,
        offer: await ask(name, request, signal),
      }));
      for (const { name, offer } of await Promise.all(asked)) {
        if (offer === undefined) continue;
        if ("load" in offer) offers.push({ ...offer, name });
        else refusals.push({ ...offer, name });
      }
      const best = await this.#firstReady(offers.splice(0), request, signal);
      if (best !== undefined || others.length === 0) return { best, refusals };
    }
  }

  #others(): Weighted[] {
    return openServers(this.#options).map(([name, { memoryMiB: weight = MACHINE.memoryMiB }]) => ({
      name,
      weight,
    }));
  }

  /** The best server of some offers; one that cannot fetch the template of its sandbox is left out. */
  async #firstReady(
    offers: readonly Named<Offered>[],
    request: CreateSandbox,
    signal: AbortSignal | undefined,
  ): Promise<string | undefined> {
    for (const { name, fetches } of offers.toSorted((one, other) => one.load - other.load))
      if (fetches !== true || (await this.#options.fetchAt(name, request, signal))) return name;
    return undefined;
  }
}

type Offered = Extract<Offer, { load: number }>;
type Refusal = Extract<Offer, { refusal: string }>;
type Named<T> = T & { readonly name: string };

/** True of a server that does not have what the sandbox is to be made of. */
function isUnknown({ reason }: Refusal): boolean {
  return reason === "template_not_found" || reason === "volume_not_found";
}

interface Weighted {
  readonly name: string;
  readonly weight: number;
}

/** Takes so many names at random out of a list. A server with twice the weight is taken twice as often. */
function draw(from: Weighted[], count: number, random: (limit: number) => number): readonly string[] {
  const drawn: string[] = [];
  let total = from.reduce((sum, { weight }) => sum + weight, 0);
  while (drawn.length < count && from.length > 0) {
    let left = random(total);
    const at = from.findIndex(({ weight }) => (left -= weight) < 0);
    for (const { name, weight } of from.splice(at, 1)) {
      drawn.push(name);
      total -= weight;
    }
  }
  return drawn;
}
