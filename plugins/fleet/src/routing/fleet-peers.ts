import { randomInt } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { type Clock, isLoopbackName, type SurfaceRequest } from "@coppice/core";
import type { SandboxId } from "@coppice/core/backend";
import { z } from "zod";
import { type NodeRecord, openServers } from "../membership/node-record.js";
import { type FleetSandbox, SANDBOXES, sandboxOf } from "../records/fleet-sandbox.js";
import type { FleetStore } from "../store/fleet-store.js";
import type { KeyView } from "../store/key-view.js";
import { type Search, searchAnswer, type Asker, type LookUps } from "./look-ups.js";
import type { FleetSecrets } from "../trust/fleet-secrets.js";
import { RequestVerifier, type ServerRun } from "../trust/request-proof.js";
import { type PeerFinder, takeArrival } from "./fleet-headers.js";
import { HttpPeer, type Peer, type PeerConnections } from "./http-peer.js";
import { unavailable } from "../reasons.js";

type HeldName = Parameters<PeerFinder["holderOf"]>[0];

const heldAnswer = z.object({ isHere: z.boolean() });
/** How long a server is asked alone that had something: clients that wait for a build ask often. */
const KNOWN_MS = 5000;
const MOST_KNOWN = 10_000;

interface FleetPeersOptions {
  /** Name of the listener for other servers. */
  readonly listener: string;
  readonly node: string;
  readonly secrets: FleetSecrets;
  /** This server, once it has started. */
  readonly own: () => ServerRun;
  /** True where requests may go to other hosts without TLS. */
  readonly isInsecure: () => boolean;
  readonly store: Pick<FleetStore, "get">;
  readonly nodes: Pick<KeyView<NodeRecord>, "get" | "entries">;
  readonly sandboxes: Pick<KeyView<FleetSandbox>, "get">;
  readonly cordons: Pick<KeyView<true>, "get">;
  /** Throws while this server may not act for the fleet. */
  readonly requireMember: () => void;
  readonly connections: PeerConnections;
  readonly onFailure: () => void;
  readonly connectMs: number;
  readonly clock: Clock;
  /** Time for the answer of all servers to one request. */
  readonly gatherMs: number;
  readonly lookUps: LookUps;
}

/** The servers of the fleet's sandboxes, by a map that a watch keeps up to date. */
export class FleetPeers implements PeerFinder {
  readonly listener: string;
  readonly #options: FleetPeersOptions;
  readonly #verifier: RequestVerifier;
  /** By name, those that requests were passed on to. */
  readonly #peers = new Map<string, HttpPeer>();
  /** Servers that had something a moment ago, by kind, tenant and name. */
  readonly #holders = new Map<string, { readonly server: string; readonly untilMs: number }>();

  constructor(options: FleetPeersOptions) {
    this.#options = options;
    this.listener = options.listener;
    this.#verifier = new RequestVerifier({ secrets: options.secrets, server: options.own });
  }

  requirePlace(): void {
    this.#options.requireMember();
  }

  arrivalOf(message: IncomingMessage): ReturnType<PeerFinder["arrivalOf"]> {
    const { listener: own, requireMember } = this.#options;
    const arrival = takeArrival(message, { verifier: this.#verifier, own });
    // What a former member has may be another's, or be given up for lost.
    requireMember();
    return arrival;
  }

  async find(id: SandboxId, asker: Asker): Promise<Peer | undefined> {
    const { node, sandboxes } = this.#options;
    const known = sandboxes.get(id);
    // For a tenant, another one's is looked for as long as one that nobody has, and is not there either.
    const found = known !== undefined && maySee(asker, known) ? known : await this.#lookUp(id, asker);
    if (found === undefined || found.node === node || found.lostAtMs !== undefined) return undefined;
    return maySee(asker, found) ? this.named(found.node) : undefined;
  }

  async search(request: SurfaceRequest): Promise<Peer | undefined> {
    const { method, url, headers, signal, surface } = request;
    const { gatherMs, lookUps } = this.#options;
    const found = new AbortController();
    const ended = AbortSignal.any([signal, found.signal, AbortSignal.timeout(gatherMs)]);
    const preflight = headers["access-control-request-method"];
    const question: Search = { method, path: url.pathname + url.search, listener: surface, preflight };
    const looked = await lookUps.run(request, async () => {
      const asked = this.#others().map(async (node) => {
        const peer = this.named(node);
        const { isHere } = searchAnswer.parse(await peer.ask("/searches", question, ended));
        if (!isHere) throw new Error(`'${node}' does not have it`);
        return peer;
      });
      try {
        return await Promise.any(asked);
      } catch {
        return undefined;
      } finally {
        found.abort();
      }
    });
    return looked?.found;
  }

  #others(): readonly string[] {
    const { node: own, nodes } = this.#options;
    return [...nodes.entries()].flatMap(([node, { secret }]) =>
      node === own || secret === undefined ? [] : [node],
    );
  }

  named(server: string): HttpPeer {
    const known = this.#peers.get(server);
    if (known !== undefined) return known;
    const record = this.#options.nodes.get(server);
    if (record === undefined || record.stoppedAtMs !== undefined)
      throw unavailable(`server '${server}' of the fleet is away, please retry`);
    const { secrets, connectMs, connections, onFailure, isInsecure } = this.#options;
    const { secret, address } = record;
    if (secret === undefined) throw unavailable(`server '${server}' does not prove the fleet's secret`);
    if (!isInsecure() && !isSafeAddress(address))
      throw unavailable(`server '${server}' of the fleet is reached without TLS`);
    const options = { secrets, connectMs, connections, onFailure };
    const peer = new HttpPeer({ ...options, node: server, server: { ...record, secret } });
    this.#peers.set(server, peer);
    return peer;
  }

  makerOfNew(): string | undefined {
    const { node, cordons } = this.#options;
    if (cordons.get(node) === undefined) return undefined;
    const others = openServers(this.#options);
    return others[randomInt(Math.max(1, others.length))]?.[0];
  }

  endOf(id: SandboxId): NonNullable<ReturnType<PeerFinder["endOf"]>> | undefined {
    const found = this.#options.sandboxes.get(id);
    if (found?.lostAtMs === undefined) return undefined;
    const { tenant: owner, backend, template, startedAtMs, tokenDigest, lostAtMs } = found;
    return {
      id,
      owner,
      backend,
      template,
      startedAtMs,
      reason: "server lost",
      endedAtMs: lostAtMs,
      accessTokenDigest: tokenDigest,
    };
  }

  async gather(request: SurfaceRequest): ReturnType<PeerFinder["gather"]> {
    const { gatherMs } = this.#options;
    const signal = AbortSignal.any([request.signal, AbortSignal.timeout(gatherMs)]);
    const unreached: string[] = [];
    const answers = await Promise.all(
      this.#others().map(async (node) => {
        try {
          return [await this.named(node).get(request, signal)];
        } catch (error) {
          request.log.warn({ err: error, node }, "a list lacks what another server has");
          unreached.push(node);
          return [];
        }
      }),
    );
    return { answers: answers.flat(), unreached };
  }

  /** Resolves when all other servers have answered, but for those that do not in time. */
  async askAll(path: string, question: object): Promise<void> {
    const signal = AbortSignal.timeout(this.#options.gatherMs);
    await Promise.allSettled(
      this.#others().map(async (node) => this.named(node).ask(path, question, signal)),
    );
  }

  async holderOf(held: HeldName, request: SurfaceRequest): Promise<string | undefined> {
    const { nodes, gatherMs, clock, lookUps } = this.#options;
    const name = JSON.stringify([held.kind, held.tenant, held.reference]);
    const looked = await lookUps.run(request, async () => {
      const known = this.#holders.get(name);
      const signal = AbortSignal.any([request.signal, AbortSignal.timeout(gatherMs)]);
      // A name may have moved to another server: of a sandbox that was removed, and made anew.
      if (known !== undefined && known.untilMs > clock.now() && nodes.get(known.server) !== undefined)
        if ((await this.#ask(known.server, held, signal)) !== undefined) return known.server;
      const server = await firstFound(this.#others().map((other) => this.#ask(other, held, signal)));
      if (server !== undefined) this.#remember(name, server);
      return server;
    });
    if (looked === undefined) throw unavailable("too many look-ups, please retry");
    return looked.found;
  }

  /** Ends what is under way with a server that left its place, or took it again. */
  forget(node: string): void {
    this.#peers.get(node)?.end();
    this.#peers.delete(node);
  }

  end(): void {
    for (const node of this.#peers.keys()) this.forget(node);
  }

  /** @returns the server's name if it has something. @throws SandboxError when it does not say so */
  async #ask(server: string, held: HeldName, signal: AbortSignal): Promise<string | undefined> {
    try {
      const { isHere } = heldAnswer.parse(await this.named(server).ask("/holdings", held, signal));
      return isHere ? server : undefined;
    } catch (cause) {
      const text = `server '${server}' of the fleet did not say whether it has this, please retry`;
      throw unavailable(text, cause);
    }
  }

  #remember(name: string, server: string): void {
    const { clock } = this.#options;
    this.#holders.delete(name);
    this.#holders.set(name, { server, untilMs: clock.now() + KNOWN_MS });
    // The oldest first.
    for (const [old, { untilMs }] of this.#holders) {
      if (untilMs > clock.now() && this.#holders.size <= MOST_KNOWN) return;
      this.#holders.delete(old);
    }
  }

  /** One that was made a moment ago may not be in the map yet. */
  async #lookUp(id: SandboxId, asker: Asker): Promise<FleetSandbox | undefined> {
    const { store, lookUps } = this.#options;
    const looked = await lookUps.run(asker, () => store.get(SANDBOXES + id));
    return looked?.found && sandboxOf(looked.found);
  }
}

/** True also for a request that is no tenant's: the token of the sandbox decides on it. */
function maySee({ principal }: Asker, { tenant }: FleetSandbox): boolean {
  return principal === undefined || principal.tenant === tenant;
}

/** False for an address where a network between hosts could read along. */
export function isSafeAddress(address: string): boolean {
  const { protocol, hostname } = new URL(address);
  return protocol === "https:" || isLoopbackName(hostname.replace(/^\[(.*)\]$/, "$1"));
}

/** The first that is found. @throws the first failure when none is */
async function firstFound(asked: readonly Promise<string | undefined>[]): Promise<string | undefined> {
  const require = async (one: Promise<string | undefined>): Promise<string> => {
    const found = await one;
    if (found === undefined) throw new Error("not there");
    return found;
  };
  try {
    return await Promise.any(asked.map(require));
  } catch {
    for (const one of asked) await one;
    return undefined;
  }
}
